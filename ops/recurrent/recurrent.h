#pragma once
// What the attributes of RNN, GRU and LSTM say, and how their operands lie in memory.
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"
#include "lathe/tensor.h"
#include "src/base/expression.h"

namespace lathe {

struct RecurrentActivation {
  enum class Kind : uint8_t {
    sigmoid,
    tanh,
    relu,
    affine,
    leaky_relu,
    thresholded_relu,
    scaled_tanh,
    hard_sigmoid,
    elu,
    softsign,
    softplus
  };
  Kind kind = Kind::sigmoid;
  float alpha = 0, beta = 0;
};

double apply(const RecurrentActivation& activation, double x);
// Appends the activation of node `x`; gives its node.
int append(Expression& expression, const RecurrentActivation& activation, int x);

enum class RecurrentCell : uint8_t { rnn, gru, lstm };

struct RecurrentSpec {
  RecurrentCell cell = RecurrentCell::rnn;
  int gates = 1;  // 1, 3 (z r h) or 4 (i o f c)
  int64_t directions = 1;
  bool is_first_reversed = false;                // direction "reverse"; a second direction always is
  std::vector<RecurrentActivation> activations;  // 1, 2 or 3 for each direction
  float clip = 0;                                // 0: none
  bool couples_forget = false;                   // LSTM: forget gate = 1 - input gate
  bool is_linear_before_reset = false;           // GRU
  bool is_batch_first = false;                   // layout 1
  bool has_gates_last = false;                   // W and R end with the gates: [directions][k][gates * hidden]

  bool is_reversed(int64_t direction) const { return is_first_reversed || direction == 1; }
  const RecurrentActivation* activations_of(int64_t direction) const {
    return activations.data() + static_cast<size_t>(direction) * (activations.size() / static_cast<size_t>(directions));
  }
};

// Throws Error(invalid_model) naming the node.
RecurrentSpec recurrent_spec(const Node& node);

struct RecurrentExtents {
  int64_t steps = 0, batch = 0, input = 0, hidden = 0;
};
// From the static dims of X and R. Throws Error(invalid_model) naming the node, also when W does not fit.
RecurrentExtents recurrent_extents(const Node& node, const RecurrentSpec& spec, const Dims& x, const Dims& w,
                                   const Dims& r);

void infer_recurrent(InferContext& context);

// Whether a sequence's state has a part in the range by which the states before its step `step` are rounded to bytes:
// it goes on with this step or ended with the one before. Where Y is not wanted, whose zeros take the place of ended
// states, these go on counting.
inline bool counts_in_range(int64_t step, int64_t length, bool wants_y) {
  return step <= length || (!wants_y && length > 0);
}

// The dims of B, initial_h, initial_c, P, sequence_lens and of Y, Y_h by name of the operand.
Dims recurrent_dims(const RecurrentSpec& spec, const RecurrentExtents& extents, const std::string& operand);

// For the references: an operand that may be absent (then empty), by its number and name in recurrent_dims(), and the
// lengths of all sequences. Throw Error naming the node.
std::vector<double> optional_reals(const ReferenceContext& context, const RecurrentSpec& spec,
                                   const RecurrentExtents& extents, size_t input, const char* name);
std::vector<int64_t> sequence_lengths(const ReferenceContext& context, const RecurrentSpec& spec,
                                      const RecurrentExtents& extents);

// One unit of an LSTM at one time step: sums of the gates i, o, f, c, and weights of the peepholes i, o, f.
struct LstmUnit {
  double sums[4] = {}, peepholes[3] = {};
};
// Gives the hidden state.
double step(const RecurrentSpec& spec, const RecurrentActivation* activations, const LstmUnit& unit, double& cell);

}  // namespace lathe
