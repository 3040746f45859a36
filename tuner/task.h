#pragma once
// What the tuner sees of a kernel: a key, a few knobs, and a way to build and run a candidate. It knows no graph, no
// jit.
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/arithmetic.h"

namespace lathe {

struct Knob {
  std::string name;
  std::vector<int> choices;
};
// The choices and, where they lack it, the rule's own.
std::vector<int> with_choice(std::vector<int> choices, int own);
// Of a knob that is off, or on where that is possible.
std::vector<int> off_or_on(bool is_possible);

// One value per knob, by name.
using Candidate = std::map<std::string, int>;
std::string to_string(const Candidate& candidate);  // "k_unroll=4 rows=14 vecs=2"
// Throws Error(invalid_argument) when the text is not one.
Candidate parse_candidate(std::string_view text);

struct SearchSpace {
  std::vector<Knob> knobs;
  std::function<bool(const Candidate&)> allowed;  // null: all
  Candidate fallback;                             // the analytic model's choice
};

// Runs the built candidate once over operands of its own; `prepare`, not timed, brings the caches into the state that
// the task finds in a model. Built in `build`; empty: cannot be emitted.
struct Runner {
  std::function<void()> run, prepare;

  Runner() = default;
  Runner(std::nullptr_t) {}
  Runner(std::function<void()> once, std::function<void()> before = nullptr)
      : run(std::move(once)), prepare(std::move(before)) {}
  template <std::invocable Run>
  Runner(Run once) : run(std::move(once)) {}
  explicit operator bool() const { return run != nullptr; }
  void operator()() const { run(); }
};

struct TuningTask {
  std::string family;  // "gemm", with the family's code version: "gemm.1"
  std::string key;     // the task's text: shapes, types, layouts, epilogue
  int threads = 1;
  SearchSpace space;
  std::function<Runner(const Candidate&)> build;
  double flop = 0;
  Arithmetic arithmetic = Arithmetic::f32;
  double bytes = 0;          // read and written at least, weights included
  double weight_bytes = 0;   // of them: constants, which come from memory
  double written_bytes = 0;  // of them
  // Weights that turns read again, one behind the other: in all turns but the first, near to each thread meanwhile, and
  // what part of `flop` the turns do.
  double reread_bytes = 0, reread_near_bytes = 0, reread_flop = 0;
};

// Where plans come from: the cache under the analytic model. Lowering asks it for every task.
class PlanSource {
 public:
  virtual ~PlanSource() = default;
  // The tuned winner for this task, or the space's fallback. Also lets a recording source see the task.
  virtual Candidate choose(const TuningTask& task) = 0;
};

}  // namespace lathe
