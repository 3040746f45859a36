#include "src/runtime/deliver.h"

#include <cstring>
#include <string>

#include "lathe/error.h"

namespace lathe {

void deliver(const Tensor& result, Tensor& output) {
  if (!output.defined()) {
    output = result;
    return;
  }
  if (result.bytes() == 0 && result.size() > 0)
    throw Error(ErrorCode::invalid_argument, "strings and values that are no tensors cannot be written into a buffer");
  if (output.dtype() != result.dtype() || output.dims() != result.dims())
    throw Error(ErrorCode::invalid_argument,
                "an output buffer is " + std::string(name_of(output.dtype())) + "[" + to_string(output.dims()) +
                    "], the result is " + std::string(name_of(result.dtype())) + "[" + to_string(result.dims()) + "]");
  if (result.bytes() > 0 && result.raw() != output.raw())
    std::memcpy(output.mutable_raw(), result.raw(), result.bytes());
}

}  // namespace lathe
