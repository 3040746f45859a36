#pragma once
// The step that walks the time of an RNN, GRU or LSTM whose products with W are made, and what R must be for it.
#include <memory>
#include <vector>

#include "ops/lower.h"
#include "ops/recurrent/recurrent_program.h"
#include "ops/recurrent/recurrent_weights.h"

namespace lathe {

// What of a task the operands beside X, W and R say. False: types or shapes that the walk lacks. Requires: spec,
// extents.
bool describe_walk(const LowerContext& context, RecurrentTask& task);

// One direction, or some of its batch entries.
struct RecurrentPart {
  int64_t direction = 0, first_entry = 0;
  std::shared_ptr<const RecurrentProgram> program;
};
// Throws JitError.
std::vector<RecurrentPart> recurrent_parts(const RecurrentTask& task, PlanSource& plans);

// `projected`: for each direction X W^T with the biases, a row of gates * hidden for each step and batch entry in the
// order of X.
void add_walk(const LowerContext& context, const RecurrentTask& task, const std::vector<RecurrentPart>& parts,
              const std::vector<BufferId>& projected);

}  // namespace lathe
