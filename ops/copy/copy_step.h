#pragma once
// Lowering of operators that only move elements: strided copies as one threaded step.
#include <vector>

#include "lathe/dtype.h"
#include "ops/copy/copy_elements.h"
#include "ops/lower.h"

namespace lathe {

// One strided copy from buffer to buffer; offsets and strides in elements of the step's type.
struct CopyJob {
  BufferId from = BufferId::none;  // none: one zero; all strides and the offset of `from` are 0
  BufferId to = BufferId::none;
  int64_t from_offset = 0, to_offset = 0;
  std::vector<MoveAxis> axes;
};

// One step that does all jobs, split over threads by bytes. False: elements are not whole bytes (strings, packed).
bool add_copy_step(LowerContext& context, DType dtype, std::vector<CopyJob> jobs);
// Fills the whole buffer with the element whose bytes are at `value` (a zero element when null).
bool add_fill_step(LowerContext& context, DType dtype, BufferId to, int64_t count, const void* value);

// Input 0 in its layout to output 0 in the other: one of the two is plain, the other channel-blocked.
bool add_reorder_step(LowerContext& context, const TensorType& from, const TensorType& to);

// Output 0 has the bytes of input 0 in their order (Reshape): shared where the memory plan can, copied otherwise.
bool lower_as_same_bytes(LowerContext& context);
bool lower_as_same_bytes(LowerContext& context, ValueId output, ValueId input);

}  // namespace lathe
