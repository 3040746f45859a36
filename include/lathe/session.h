#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/accuracy.h"
#include "lathe/error.h"
#include "lathe/tensor.h"
#include "lathe/value.h"

namespace lathe {

struct SessionOptions {
  int threads = 0;              // 0: as many as the cgroup's quota and the affinity mask allow
  int optimization_level = 99;  // 0 none, 1 basic, 2 extended, 3 layout, 99 all
  Accuracy accuracy = Accuracy::normal;
  bool use_cache = true;   // read tuned plans
  std::string cache_path;  // empty: $LATHE_CACHE, else $XDG_CACHE_HOME/lathe/tuning.db
  std::vector<std::string> disabled_passes;
  std::vector<std::string> custom_op_libraries;  // shared libraries with operators: see custom_op.h
};

// One input or output of a model. An extent is -1 where the model leaves it open; `symbols` then has its name, or "".
struct ValueInfo {
  std::string name;
  // What is no tensor, as text: "seq(float32[...])", "optional(...)", "map(int64,float32[])"; the fields below then say
  // nothing. Empty for a tensor.
  std::string container;
  DType dtype = DType::undefined;
  bool has_rank = true;
  Dims dims;
  std::vector<std::string> symbols;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct Profile;  // include/lathe/profile.h

// A loaded model. Copies share it. Many threads may call run() on one Session at a time.
class Session {
 public:
  // Throws Error: io, invalid_model, unsupported, limit.
  static Session load(const std::string& path, const SessionOptions& options = {});
  // `bytes` are copied; external data is looked for in `base_directory`.
  static Session load(std::span<const std::byte> bytes, const std::string& base_directory,
                      const SessionOptions& options = {});

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;

  // Inputs in the order of inputs(); outputs in that of outputs(). Throws Error: invalid_argument names the input, or
  // an output that is no tensor.
  std::vector<Tensor> run(std::span<const Tensor> inputs) const;
  // Inputs by name, in any order.
  std::vector<Tensor> run(std::span<const NamedTensor> inputs) const;
  // For models whose inputs or outputs may be sequences, optionals or maps.
  std::vector<AnyValue> run(std::span<const AnyValue> inputs) const;
  // Results are written into the caller's tensors. Requires: types and shapes as run() would give (checked).
  void run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) const;
  // As run(), timing every step. See profile.h.
  std::vector<Tensor> run_profiled(std::span<const Tensor> inputs, Profile& profile) const;

  class State;
  const std::shared_ptr<State>& state() const { return state_; }  // for Lathe's own tools

 private:
  explicit Session(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace lathe
