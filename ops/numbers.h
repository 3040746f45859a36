#pragma once
// Elements of any real type as numbers: what the references of operators with arithmetic are made of.
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "graph/op_schema.h"
#include "lathe/tensor.h"

namespace lathe {

double from_float16(uint16_t bits);
double from_bfloat16(uint16_t bits);
// To nearest even, straight from float64 (no double rounding).
uint16_t to_float16(double value);
uint16_t to_bfloat16(double value);

// Every element as float64. Floating point, integers and bool; throws Error(unsupported) on another type.
std::vector<double> reals_of(const Tensor& tensor);
// Every element as int64 (uint64 keeps its bits). Integers and bool; throws Error(unsupported) on another type.
std::vector<int64_t> integers_of_any(const Tensor& tensor);
// The value as an element of `dtype` holds it: rounded to nearest, or truncated and wrapped for integers.
double rounded_to(DType dtype, double value);

// Stores `value`, rounded. Requires: a type that reals_of reads.
void store_real(Tensor& tensor, int64_t i, double value);
// A tensor of these elements. The two counts must agree. Throws as make_output (ops/copy/copy_elements.h).
Tensor tensor_of_reals(const ReferenceContext& context, DType dtype, Dims dims, std::span<const double> elements);

// Copies single elements of whole-byte types and strings between tensors of one type.
class ElementCopy {
 public:
  explicit ElementCopy(DType dtype);
  void operator()(const Tensor& from, int64_t i, Tensor& to, int64_t j) const { (*this)(from, i, to, j, 1); }
  // `count` consecutive elements.
  void operator()(const Tensor& from, int64_t i, Tensor& to, int64_t j, int64_t count) const;

 private:
  bool is_string_;
  size_t bytes_;
};

// The one element of a scalar or of a tensor of one element. Calls context.fail() naming `what` otherwise.
template <class Context>
int64_t integer_scalar(const Context& context, const Tensor& tensor, const std::string& what) {
  if (tensor.size() != 1) {
    context.fail(what + " has " + std::to_string(tensor.size()) + " elements, expected one");
  }
  return integers_of_any(tensor)[0];
}
template <class Context>
double real_scalar(const Context& context, const Tensor& tensor, const std::string& what) {
  if (tensor.size() != 1) {
    context.fail(what + " has " + std::to_string(tensor.size()) + " elements, expected one");
  }
  return reals_of(tensor)[0];
}

// The extents before, of and behind one axis, as products.
struct AxisSplit {
  int64_t outer = 1, extent = 1, inner = 1;
  int64_t row() const { return extent * inner; }  // elements of each of the outer ones
};
AxisSplit split_at(const Dims& dims, int64_t axis);

// Steps through all indices of `dims` in row-major order: for (IndexWalk at(dims); !at.done(); at.next()).
class IndexWalk {
 public:
  explicit IndexWalk(const Dims& dims);
  bool done() const { return done_; }
  void next();
  const std::vector<int64_t>& index() const { return index_; }

 private:
  Dims dims_;
  std::vector<int64_t> index_;
  bool done_;
};

// Calls visit.template operator()<T>() with the C++ type of integers, bool, float32 and float64; false for others.
template <class Visit>
bool visit_native(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      visit.template operator()<float>();
      return true;
    case DType::f64:
      visit.template operator()<double>();
      return true;
    case DType::u8:
      visit.template operator()<uint8_t>();
      return true;
    case DType::i8:
      visit.template operator()<int8_t>();
      return true;
    case DType::u16:
      visit.template operator()<uint16_t>();
      return true;
    case DType::i16:
      visit.template operator()<int16_t>();
      return true;
    case DType::u32:
      visit.template operator()<uint32_t>();
      return true;
    case DType::i32:
      visit.template operator()<int32_t>();
      return true;
    case DType::u64:
      visit.template operator()<uint64_t>();
      return true;
    case DType::i64:
      visit.template operator()<int64_t>();
      return true;
    case DType::boolean:
      visit.template operator()<bool>();
      return true;
    default:
      return false;
  }
}

}  // namespace lathe
