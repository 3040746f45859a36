#include "lathe/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lathe/error.h"
#include "src/base/cgroup.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr size_t kAlignment = 64;  // cache line, and one AVX-512 vector
constexpr size_t kSlack = 64;      // kernels may read one whole vector that begins at the last element

[[noreturn]] void fail_memory(DType dtype, const Dims& dims) {
  throw Error(ErrorCode::limit,
              "no memory for a " + std::string(name_of(dtype)) + " tensor of shape " + to_string(dims));
}

// A page fault takes longer than filling the page: 45 ms for 100 MB in small pages, 10 in huge ones.
void prefer_huge_pages(void* block, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(block) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(block) + bytes) & ~(kHugePage - 1);
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

// calloc and not aligned_alloc + memset: large blocks come zeroed from the kernel, page by page when touched.
std::shared_ptr<const void> allocate_zeroed(size_t bytes, const void*& aligned) {
  void* block = std::calloc(bytes + kSlack + kAlignment, 1);
  if (block == nullptr) return nullptr;
  prefer_huge_pages(block, bytes);
  aligned = reinterpret_cast<const void*>((reinterpret_cast<uintptr_t>(block) + kAlignment - 1) & ~(kAlignment - 1));
  return {block, [](const void* memory) { std::free(const_cast<void*>(memory)); }};
}

bool fits_element(DType dtype, DType requested, size_t requested_bytes) {
  if (dtype == requested) return dtype != DType::undefined;
  switch (dtype) {
    case DType::undefined:
    case DType::object:
    case DType::string:
      return false;
    case DType::boolean:
      return requested == DType::u8;
    case DType::f16:
    case DType::bf16:
      return requested == DType::u16;
    case DType::c64:
    case DType::c128:  // std::complex has no DType of its own here
      return requested == DType::undefined && static_cast<size_t>(bits_of(dtype)) == 8 * requested_bytes;
    default:
      break;
  }
  const bool is_raw_byte = bits_of(dtype) < 8 || (is_float(dtype) && bits_of(dtype) == 8);
  return is_raw_byte && requested == DType::u8;
}

}  // namespace

std::string to_string(const Dims& dims) {
  if (dims.empty()) return "scalar";
  std::string text;
  for (int64_t extent : dims) {
    if (!text.empty()) text += 'x';
    text += std::to_string(extent);
  }
  return text;
}

Tensor::Tensor(DType dtype, Dims dims) : dtype_(dtype), dims_(std::move(dims)), size_(checked_elements(dims_)) {
  if (dtype == DType::undefined || dtype == DType::object)
    throw Error(ErrorCode::invalid_argument, "a tensor needs an element type");
  const bool is_text = dtype == DType::string;
  const size_t payload =
      is_text ? checked_multiply(static_cast<size_t>(size_), sizeof(std::string)) : checked_bytes(dtype, dims_);
  if (payload > memory_limit()) fail_memory(dtype, dims_);
  try {
    if (is_text) {
      std::shared_ptr<std::string[]> texts(new std::string[static_cast<size_t>(size_)]);
      data_ = texts.get();
      owner_ = std::shared_ptr<const void>(texts, data_);
    } else {
      owner_ = allocate_zeroed(payload, data_);
    }
  } catch (const std::bad_alloc&) {
    fail_memory(dtype, dims_);
  }
  if (owner_ == nullptr) fail_memory(dtype, dims_);
}

Tensor Tensor::view(DType dtype, Dims dims, const void* data, std::shared_ptr<const void> owner) {
  if (dtype == DType::undefined) throw Error(ErrorCode::invalid_argument, "a tensor needs an element type");
  Tensor tensor;
  tensor.size_ = checked_elements(dims);
  checked_bytes(dtype, dims);
  tensor.dtype_ = dtype;
  tensor.dims_ = std::move(dims);
  tensor.data_ = data;
  tensor.owner_ = std::move(owner);
  return tensor;
}

size_t Tensor::bytes() const {
  // Checked when the tensor was made.
  const auto bits = static_cast<size_t>(bits_of(dtype_));
  const auto elements = static_cast<size_t>(size_);
  return bits >= 8 ? elements * (bits / 8) : (elements * bits + 7) / 8;
}

Tensor Tensor::reshaped(Dims dims) const {
  if (checked_elements(dims) != size_)
    throw Error(ErrorCode::invalid_argument, "shape " + to_string(dims_) + " cannot become " + to_string(dims));
  Tensor result = *this;
  result.dims_ = std::move(dims);
  return result;
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
  if (dtype_ == DType::object) return *this;  // never changes
  Tensor copy(dtype_, dims_);
  if (dtype_ == DType::string) {
    std::copy_n(static_cast<const std::string*>(data_), size_, copy.mutable_data<std::string>());
  } else if (bytes() > 0) {
    std::memcpy(copy.mutable_raw(), data_, bytes());
  }
  return copy;
}

void Tensor::check_element(DType requested, size_t size) const {
  if (fits_element(dtype_, requested, size)) return;
  throw Error(ErrorCode::invalid_argument, "a " + std::string(name_of(dtype_)) + " tensor of shape " +
                                               to_string(dims_) + " cannot be read as " +
                                               std::string(name_of(requested)));
}

}  // namespace lathe
