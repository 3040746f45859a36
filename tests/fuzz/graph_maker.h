#pragma once
// What patterns build with: values of known extents, and nodes of real operators over them.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/random_graph.h"

namespace lathe::testing {

class GraphMaker {
 public:
  struct Made {
    ValueId id;
    Dims dims;
  };

  explicit GraphMaker(uint32_t seed) : random_(seed) {}

  void add_inputs();

  // Float32 values so far, inputs first; never empty behind add_inputs().
  const std::vector<Made>& values() const { return values_; }
  const std::vector<Made>& inputs() const { return inputs_; }
  // Late values more often than early ones.
  const Made& pick(uint32_t choice) const;
  // A value of this rank, by choice; null when there is none.
  const Made* pick_of_rank(uint32_t choice, size_t rank) const;
  // Another value that broadcasts with `dims` into `dims`; null when there is none.
  const Made* pick_spreading(uint32_t choice, const Dims& dims) const;

  ValueId weights(const Dims& dims, float low = -1, float high = 1);
  ValueId scalar(float value);
  ValueId constant(Tensor tensor);
  ValueId integers(const std::vector<int64_t>& values);
  ValueId place(int64_t index);  // of rank 0

  using NamedAttributes = std::vector<std::pair<const char*, Attribute>>;
  std::vector<ValueId> nodes(const char* type, std::vector<ValueId> operands, int results, NamedAttributes attributes);
  ValueId node(const char* type, std::vector<ValueId> operands, NamedAttributes attributes = {}) {
    return nodes(type, std::move(operands), 1, std::move(attributes))[0];
  }
  Dims dims_of(ValueId id) const { return graph_.value(id).type.extents(); }
  // The value can be picked from now on. Too large ones are dropped.
  void keep(ValueId id);
  void mark_output(ValueId id);

  BuiltCase finish(bool has_symbol);

 private:
  Tensor noise(const Dims& dims, float low, float high);
  std::string fresh() const { return "v" + std::to_string(graph_.value_count()); }

  Graph graph_;
  std::mt19937 random_;
  std::vector<Made> values_, inputs_;
  std::vector<Tensor> tensors_;
};

using PatternFn = void(GraphMaker&, const Recipe&);
const std::vector<PatternFn*>& all_patterns();
const std::vector<PatternFn*>& picture_patterns();  // some of them
const std::vector<PatternFn*>& algebra_patterns();  // others
const std::vector<PatternFn*>& exporter_patterns();
const std::vector<PatternFn*>& byte_patterns();

// What the patterns of several files share.
template <class T, size_t N>
const T& one_of(const T (&choices)[N], uint32_t pick) {
  return choices[pick % N];
}
ValueId convolved(GraphMaker& maker, const GraphMaker::Made& x, const Recipe& recipe);  // by some convolution

}  // namespace lathe::testing
