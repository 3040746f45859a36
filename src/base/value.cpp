#include "lathe/value.h"

#include "lathe/error.h"
#include "src/base/box.h"

namespace lathe {
namespace {

[[noreturn]] void fail_kind(const AnyValue& value, const char* expected) {
  throw Error(ErrorCode::invalid_argument, "the value is " + value.kind() + ", expected " + expected);
}

}  // namespace

AnyValue::AnyValue(Tensor tensor) {
  if (is_boxed(tensor)) {
    held_ = static_cast<const AnyValue*>(tensor.raw())->held_;
  } else if (tensor.defined()) {
    held_ = std::move(tensor);
  }
}

AnyValue AnyValue::sequence(std::vector<AnyValue> items) {
  AnyValue value;
  value.held_ = std::make_shared<const std::vector<AnyValue>>(std::move(items));
  return value;
}

AnyValue AnyValue::map(Tensor keys, Tensor values) {
  if (keys.rank() != 1 || values.dims() != keys.dims()) {
    throw Error(ErrorCode::invalid_argument, "a map's keys and values have shapes " + to_string(keys.dims()) + " and " +
                                                 to_string(values.dims()) + ", expected equal ones of rank 1");
  }
  AnyValue value;
  value.held_ = std::make_shared<const Map>(Map{std::move(keys), std::move(values)});
  return value;
}

const Tensor& AnyValue::tensor() const {
  if (!is_tensor()) fail_kind(*this, "a tensor");
  return std::get<Tensor>(held_);
}

const std::vector<AnyValue>& AnyValue::items() const {
  if (!is_sequence()) fail_kind(*this, "a sequence");
  return *std::get<Items>(held_);
}

const Map& AnyValue::pairs() const {
  if (!is_map()) fail_kind(*this, "a map");
  return *std::get<Pairs>(held_);
}

std::string AnyValue::kind() const {
  if (is_tensor()) return "a tensor";
  if (is_sequence()) return "a sequence";
  return is_map() ? "a map" : "nothing";
}

Tensor box(AnyValue value) {
  if (value.is_tensor()) return value.tensor();
  auto held = std::make_shared<const AnyValue>(std::move(value));
  const void* address = held.get();
  return Tensor::view(DType::object, {}, address, std::move(held));
}

}  // namespace lathe
