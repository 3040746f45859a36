#pragma once
// The walk through time of one RNN, GRU or LSTM: products with R in packed form, gates as generated loops.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "jit/kernels/pointwise/pointwise.h"
#include "ops/recurrent/recurrent.h"
#include "ops/recurrent/recurrent_product.h"

namespace lathe {

// What one direction reads and writes. One row for each batch entry.
struct RecurrentOperands {
  const float* projected = nullptr;  // X W^T + bias: a row of gates * hidden for each step and entry
  int64_t projected_step = 0,
          projected_entry = 0;              // elements from step to step, from entry to entry
  std::array<const void*, 2> weights = {};  // of each product, packed
  const float* r_scale = nullptr;           // of bytes: one, or one for each column
  const float* recurrent_bias = nullptr;    // linear-before-reset only; null: none
  const float* peepholes = nullptr;         // 3 * hidden; null: none
  ConstHiddenRows first_hidden;
  HiddenRows cell;          // holds the initial cell state, in the end the last one
  HiddenRows hidden;        // of step 0
  int64_t hidden_step = 0;  // elements from step to step; 0: the same rows again
  bool is_reversed = false;
  bool goes_back_by_entry = false;  // projected and hidden rows of step i are of each entry's own last step but i
  bool wants_y = true;
  // Where sequences end early: their lengths, and the hidden rows of each step once more, zero behind the end.
  const int32_t* lengths = nullptr;
  HiddenRows copied;        // of step 0; null: not wanted
  int64_t copied_step = 0;  // elements from step to step
  float* held = nullptr;    // 2 * batch * hidden of this share's own
  float* gates = nullptr;   // batch * gates * hidden; of two steps where several
                            // shares have them
  float* own = nullptr;     // own_elements() of this share's own
};

// Who does a part of the work: each share makes all gates' loops for itself, and its columns of the products. One round
// lies between two products of a direction, in which all shares see what the others have made.
struct RecurrentShare {
  int share = 0, shares = 1;
  int round = 0;
};

struct RecurrentTask {
  RecurrentSpec spec;
  RecurrentExtents extents;
  bool has_bias = false,
       has_peepholes = false;             // whether the operands of that name are there
  bool has_lengths = false;               // sequences that end early
  std::vector<ByteWeights> r_bytes = {};  // by direction; none: R is float32
  Isa isa = Isa::avx2;
  // Each direction's work: by batch entries, each part with a program of its own, or by columns of the products.
  int parts = 1, shares = 1;

  // Reversed sequences of bytes begin together, each at its own end, since each step has one range of all of them: what
  // is projected comes in this order.
  bool reverses_by_entry(int64_t direction) const {
    return has_lengths && !r_bytes.empty() && spec.is_reversed(direction);
  }
};

// The ranges of H that the parts of a direction have found, of two steps; each in a line of its own.
struct RecurrentRanges {
  static constexpr int64_t kStride = 16;
  float* all = nullptr;  // 2 * parts of them
  int parts = 1, own = 0;
};

class RecurrentProgram {
 public:
  // Throws JitError.
  RecurrentProgram(const RecurrentTask& task, int64_t direction, PlanSource& plans);

  // One or two products with R; each has weights of its own.
  size_t products() const { return products_.size(); }
  const RecurrentProduct& product(size_t part) const { return *products_[part].product; }
  int64_t entries() const { return task_.extents.batch; }
  int64_t own_elements() const;
  // Of one share alone. Rows of the hidden state after the last step.
  ConstHiddenRows run(const RecurrentOperands& operands) const noexcept;
  // The same in rounds() of several shares, which differ in `own`, `cell` and `hidden`.
  int rounds() const;
  ConstHiddenRows run_round(const RecurrentOperands& operands, const RecurrentShare& who) const noexcept;
  // The same in rounds of a part alone, where H is rounded by one range for all parts of a direction.
  int rounds_of_ranges() const { return static_cast<int>(task_.extents.steps) + 1; }
  ConstHiddenRows run_round_of_ranges(const RecurrentOperands& operands, const RecurrentRanges& ranges,
                                      int round) const noexcept;
  std::string text() const;

 private:
  struct Moment;
  using Loop = Kernel<void(const PointwiseArgs*)>;

  void plan_rnn(const RecurrentActivation* f);
  void plan_gru(const RecurrentActivation* f);
  void plan_lstm(const RecurrentActivation* f);
  void add_product(int first_gate, int gates, bool adds_projected, bool adds_bias, PlanSource& plans);
  void add_loop(const Expression& expression);
  int clipped(Expression& expression, int x) const;

  int64_t product_offset() const;  // of what a product keeps for itself, in the elements of `own`
  Moment moment_of(const RecurrentOperands& operands, int64_t i) const noexcept;
  // Product `part`, and the loops behind it.
  void multiply(size_t part, const Moment& moment, const RecurrentShare& who,
                const ValueRange* range = nullptr) const noexcept;
  ValueRange range_in_use(const RecurrentOperands& operands, const ConstHiddenRows& rows, int64_t time) const noexcept;
  void finish(size_t part, const Moment& moment) const noexcept;
  void finish_within_lengths(size_t part, const Moment& moment) const noexcept;
  void loop(size_t number, std::initializer_list<ConstHiddenRows> inputs, HiddenRows out) const noexcept;
  ConstHiddenRows gate(const Moment& moment, int number) const noexcept;
  ConstHiddenRows projected_gate(const Moment& moment, int number) const noexcept;

  struct Product {
    int64_t first_column;
    bool adds_projected, adds_bias;
    std::unique_ptr<const RecurrentProduct> product;
  };

  const RecurrentTask task_;
  const int64_t direction_;
  std::vector<Product> products_;
  std::vector<Loop> loops_;
};

}  // namespace lathe
