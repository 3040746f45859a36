#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/dtype.h"

namespace lathe {

using Dims = std::vector<int64_t>;

std::string to_string(const Dims& dims);  // "1x3x224x224"; "scalar" for rank 0

// A dense row-major array. Copies share the elements (like a shared_ptr). Thread-safe to read.
// A default-constructed Tensor is undefined: it stands for an absent optional input.
class Tensor {
 public:
  Tensor() = default;
  // Zeroed elements, aligned to 64 bytes, with 64 readable bytes behind them.
  // Throws Error(limit) when the size overflows or memory runs out, Error(invalid_argument) on a negative extent.
  Tensor(DType dtype, Dims dims);

  // A view of somebody else's elements; `owner` is kept alive as long as the view. The caller answers for the size.
  static Tensor view(DType dtype, Dims dims, const void* data, std::shared_ptr<const void> owner = nullptr);
  template <class T>
  static Tensor from(Dims dims, std::span<const T> elements);
  template <class T>
  static Tensor from(Dims dims, std::initializer_list<T> elements) {
    return from<T>(std::move(dims), std::span<const T>(elements.begin(), elements.size()));
  }
  template <class T>
  static Tensor scalar(T value) {
    return from<T>({}, std::span<const T>(&value, 1));
  }

  bool defined() const { return dtype_ != DType::undefined; }
  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t size() const { return size_; }  // elements
  size_t bytes() const;                   // 0 for strings

  // Requires: the element type fits T (checked: Error(invalid_argument)). bf16, f16 and float8 are read as raw bits by
  // uint16_t and uint8_t; packed sub-byte types by uint8_t; bool also by uint8_t.
  template <class T>
  const T* data() const {
    check_element(dtype_of<T>(), sizeof(T));
    return static_cast<const T*>(raw());
  }
  template <class T>
  T* mutable_data() {
    check_element(dtype_of<T>(), sizeof(T));
    return static_cast<T*>(mutable_raw());
  }
  template <class T>
  std::span<const T> elements() const {  // packed sub-byte types: the bytes
    return {data<T>(), bits_of(dtype_) % 8 != 0 ? bytes() : static_cast<size_t>(size_)};
  }
  const void* raw() const { return data_; }
  void* mutable_raw() { return const_cast<void*>(data_); }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // The same elements under other extents of equal product.
  Tensor reshaped(Dims dims) const;
  Tensor clone() const;  // own copy of the elements

 private:
  void check_element(DType requested, size_t size) const;

  DType dtype_ = DType::undefined;
  Dims dims_;
  int64_t size_ = 0;
  const void* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

template <class T>
Tensor Tensor::from(Dims dims, std::span<const T> elements) {
  Tensor tensor(dtype_of<T>(), std::move(dims));
  T* out = tensor.mutable_data<T>();
  for (size_t i = 0; i < elements.size() && i < static_cast<size_t>(tensor.size()); ++i) out[i] = elements[i];
  return tensor;
}

}  // namespace lathe
