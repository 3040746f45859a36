#pragma once
// The walk through time of one RNN, GRU or LSTM: products with R in packed form, gates as generated loops.
#include <array>
#include <memory>
#include <vector>

#include "jit/kernels/pointwise/pointwise.h"
#include "ops/gemm/gemm_product.h"
#include "ops/recurrent/recurrent.h"

namespace lathe {

// Rows of `hidden` elements, `stride` elements apart.
struct HiddenRows {
  float* data = nullptr;
  int64_t stride = 0;
};
struct ConstHiddenRows {
  const float* data = nullptr;
  int64_t stride = 0;
};

// What one direction reads and writes. One row for each batch entry.
struct RecurrentOperands {
  const float* projected = nullptr;                 // X W^T + bias: a row of gates * hidden for each step and entry
  int64_t projected_step = 0, projected_entry = 0;  // elements from step to step, from entry to entry
  std::array<const float*, 2> weights = {};         // of weight_parts(), packed
  const float* recurrent_bias = nullptr;            // linear-before-reset only; null: none
  const float* peepholes = nullptr;                 // 3 * hidden; null: none
  ConstHiddenRows first_hidden;
  HiddenRows cell;          // holds the initial cell state, in the end the last one
  HiddenRows hidden;        // of step 0
  int64_t hidden_step = 0;  // elements from step to step; 0: the same rows again
  bool is_reversed = false;
  float* gates = nullptr;  // gate_elements()
  float* own = nullptr;    // own_elements() of this share's own
};

// Who does a part of the work: each share makes all gates' loops for itself, and its columns of the products. One
// round lies between two products of a direction, in which all shares see what the others have made.
struct RecurrentShare {
  int share = 0, shares = 1;
  int round = 0;
};

class RecurrentProgram {
 public:
  // `has_bias`, `has_peepholes`: whether the operands of that name are there. `shares`: of each direction's work.
  // Throws JitError.
  RecurrentProgram(const RecurrentSpec& spec, const RecurrentExtents& extents, int64_t direction, bool has_bias,
                   bool has_peepholes, Isa isa, int shares, PlanSource& plans);

  // The gates that each packed matrix is made of, in the order of R's rows; at most two parts.
  struct WeightPart {
    int first_gate, gates;
    PanelFormat format;
  };
  std::vector<WeightPart> weight_parts() const;
  int64_t gate_elements() const;
  int64_t own_elements() const;
  // Of one share alone. Rows of the hidden state after the last step.
  ConstHiddenRows run(const RecurrentOperands& operands) const noexcept;
  // The same in rounds() of several shares, which differ in `own`, `cell` and `hidden`.
  int rounds() const;
  ConstHiddenRows run_round(const RecurrentOperands& operands, const RecurrentShare& who) const noexcept;
  std::string text() const;

 private:
  struct Moment;
  using Loop = Kernel<void(const PointwiseArgs*)>;

  void plan_rnn(const RecurrentActivation* f);
  void plan_gru(const RecurrentActivation* f);
  void plan_lstm(const RecurrentActivation* f, bool has_peepholes);
  void add_product(int first_gate, int gates, bool adds_projected, bool has_bias, PlanSource& plans);
  void add_loop(const Expression& expression);
  int clipped(Expression& expression, int x) const;

  Moment moment_of(const RecurrentOperands& operands, int64_t i) const noexcept;
  // Product `part`, and the loops behind it.
  void multiply(size_t part, const Moment& moment, const RecurrentShare& who) const noexcept;
  void finish(size_t part, const Moment& moment) const noexcept;
  void loop(size_t number, std::initializer_list<ConstHiddenRows> inputs, HiddenRows out) const noexcept;
  ConstHiddenRows gate(const Moment& moment, int number) const noexcept;
  ConstHiddenRows projected_gate(const Moment& moment, int number) const noexcept;

  struct Product {
    int first_gate, gates;
    bool adds_projected, adds_bias;
    std::shared_ptr<const GemmProduct> product;
  };

  RecurrentSpec spec_;
  RecurrentExtents extents_;
  Isa isa_;
  int shares_;
  std::vector<Product> products_;
  std::vector<Loop> loops_;
};

}  // namespace lathe
