#include "tests/fuzz/strange_node.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "graph/text.h"
#include "graph/verify.h"
#include "lathe/error.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/graph_runner.h"

namespace lathe::testing {
namespace {

constexpr int kLatestOpset = 28;
constexpr DType kTypes[] = {DType::f32, DType::f32, DType::f32, DType::i64, DType::i32,     DType::u8,
                            DType::i8,  DType::f64, DType::f16, DType::u16, DType::boolean, DType::bf16,
                            DType::u64, DType::i4,  DType::u4,  DType::i16, DType::u32,     DType::string};
constexpr const char* kWords[] = {"NOTSET",
                                  "SAME_UPPER",
                                  "SAME_LOWER",
                                  "VALID",
                                  "linear",
                                  "nearest",
                                  "cubic",
                                  "constant",
                                  "reflect",
                                  "edge",
                                  "wrap",
                                  "none",
                                  "add",
                                  "mul",
                                  "min",
                                  "max",
                                  "bilinear",
                                  "zeros",
                                  "border",
                                  "DCR",
                                  "CRD",
                                  "half_pixel",
                                  "asymmetric",
                                  "align_corners",
                                  "floor",
                                  "ceil",
                                  "forward",
                                  "reverse",
                                  "mean",
                                  "sum",
                                  "ij,jk",
                                  "bij->bji",
                                  "...i->i...",
                                  "tanh",
                                  "bidirectional",
                                  "avg",
                                  "Sigmoid",
                                  "relu",
                                  "TF",
                                  "tf_crop_and_resize",
                                  "round_prefer_ceil",
                                  ""};

class Maker {
 public:
  explicit Maker(uint32_t seed) : random_(seed) {}

  StrangeNode make() {
    const OpDef& def = pick_operator();
    const OpSchema& schema = def.schema;
    Node node;
    node.op = &schema;
    node.version = pick(schema.since, std::max(schema.since, std::min(schema.until, kLatestOpset)));
    node.name = "strange";
    main_type_ = kTypes[pick(0, std::size(kTypes) - 1)];
    main_dims_ = some_dims();
    const int most = schema.max_inputs >= 0 ? schema.max_inputs : std::max(schema.min_inputs, 1) + pick(0, 2);
    const int count = chance(3) ? pick(schema.min_inputs, most) : most;
    for (int i = 0; i < count; ++i)
      node.inputs.push_back(i >= schema.min_inputs && chance(4) ? ValueId::none : operand());
    while (!node.inputs.empty() && node.inputs.back() == ValueId::none) node.inputs.pop_back();
    for (const AttributeSpec& spec : schema.attributes) {
      if (!(spec.required ? !chance(20) : chance(2))) continue;
      if (std::optional<Attribute> value = attribute(spec.kind)) node.attributes.set(std::string(spec.name), *value);
    }
    const int outputs = pick(schema.min_outputs, schema.max_outputs >= 0 ? schema.max_outputs : schema.min_outputs + 2);
    for (int i = 0; i < outputs; ++i) {
      const bool is_wanted = i < schema.min_outputs || !chance(4);
      node.outputs.push_back(is_wanted ? made_.graph.add_value("y" + std::to_string(i), {}) : ValueId::none);
      if (is_wanted) made_.graph.outputs.push_back(node.outputs.back());
    }
    made_.graph.add_node(std::move(node));
    return std::move(made_);
  }

 private:
  int pick(int64_t low, int64_t high) {
    return static_cast<int>(std::uniform_int_distribution<int64_t>(low, high)(random_));
  }
  bool chance(int one_in) { return pick(1, one_in) == 1; }

  // Those with bodies take more than random numbers.
  const OpDef& pick_operator() {
    const std::span<const OpDef> all = OpRegistry::builtin().all();
    while (true) {
      const OpDef& def = all[static_cast<size_t>(pick(0, static_cast<int64_t>(all.size()) - 1))];
      bool is_usable = def.schema.domain != "lathe" && def.schema.since <= kLatestOpset;
      for (const AttributeSpec& spec : def.schema.attributes) is_usable &= spec.kind != AttributeSpec::Kind::graph;
      if (is_usable) return def;
    }
  }

  Dims some_dims() {
    Dims dims;
    const int rank = chance(8) ? 0 : pick(1, 5);
    for (int i = 0; i < rank; ++i) dims.push_back(chance(25) ? 0 : chance(10) ? pick(1, 40) : pick(1, 6));
    return dims;
  }

  // Often as the first operand is, or as one that describes it.
  Dims related_dims() {
    Dims dims = main_dims_;
    switch (pick(0, 7)) {
      case 0:
      case 1:
        return dims;
      case 2:
        return {static_cast<int64_t>(dims.size())};
      case 3:
        return {};
      case 4:
        return {dims.empty() ? 1 : dims[static_cast<size_t>(pick(0, static_cast<int64_t>(dims.size()) - 1))]};
      case 5:
        if (!dims.empty()) dims[static_cast<size_t>(pick(0, static_cast<int64_t>(dims.size()) - 1))] = pick(1, 4);
        return dims;
      case 6:
        return {pick(1, 3)};
      default:
        return some_dims();
    }
  }

  Tensor elements(DType dtype, const Dims& dims) {
    Tensor tensor(dtype, dims);
    if (dtype == DType::string) {
      for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<std::string>()[i] = word();
      return tensor;
    }
    if (bits_of(dtype) < 8) {
      auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
      for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(pick(0, 255));
      return tensor;
    }
    const bool is_extreme = chance(12);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      double value = is_float(dtype) ? pick(-40, 40) / 8.0 : pick(chance(3) ? -4 : 0, 6);
      if (is_extreme && chance(3)) value = extreme();
      store_real(tensor, i, value);
    }
    return tensor;
  }

  double extreme() {
    constexpr double kExtremes[] = {-1,     0,       1e30,     -1e30, 2147483647, -2147483648.0,
                                    9.3e18, -9.3e18, INFINITY, NAN,   255,        1e-40};
    return kExtremes[pick(0, std::size(kExtremes) - 1)];
  }

  ValueId operand() {
    const bool is_first = made_.graph.value_count() == 0;
    const DType dtype = is_first || chance(2) ? main_type_
                        : chance(2)           ? DType::i64
                                              : kTypes[pick(0, std::size(kTypes) - 1)];
    Tensor tensor = elements(dtype, is_first ? main_dims_ : related_dims());
    const std::string name = "x" + std::to_string(made_.graph.value_count());
    if (!is_first && chance(2)) return made_.graph.add_constant(name, std::move(tensor));
    const ValueId id = made_.graph.add_value(name, TensorType::of(tensor.dtype(), tensor.dims()));
    made_.graph.inputs.push_back(id);
    made_.inputs.push_back(std::move(tensor));
    return id;
  }

  std::string word() { return kWords[pick(0, std::size(kWords) - 1)]; }
  int64_t integer() {
    constexpr int64_t kExtremes[] = {std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max(),
                                     int64_t{1} << 31,
                                     -(int64_t{1} << 31),
                                     int64_t{1} << 40,
                                     1 << 20};
    if (chance(20)) return kExtremes[pick(0, std::size(kExtremes) - 1)];
    return chance(3) ? pick(-4, 20) : pick(0, 4);
  }
  float real() { return chance(6) ? static_cast<float>(extreme()) : static_cast<float>(pick(-8, 16)) / 8; }

  template <class Item>
  auto list(Item item) {
    std::vector<decltype(item())> items;
    const int64_t count =
        chance(2) ? std::max<int64_t>(0, static_cast<int64_t>(main_dims_.size()) - 2) * pick(1, 2) : pick(0, 6);
    for (int64_t i = 0; i < count; ++i) items.push_back(item());
    return items;
  }

  std::optional<Attribute> attribute(AttributeSpec::Kind kind) {
    using Kind = AttributeSpec::Kind;
    switch (kind) {
      case Kind::integer:
        return integer();
      case Kind::real:
        return real();
      case Kind::string:
        return word();
      case Kind::tensor:
        return elements(kTypes[pick(0, std::size(kTypes) - 1)], chance(2) ? Dims{pick(0, 4)} : some_dims());
      case Kind::integers:
        return list([this] { return integer(); });
      case Kind::reals:
        return list([this] { return real(); });
      case Kind::strings:
        return list([this] { return word(); });
      default:
        return std::nullopt;
    }
  }

  std::mt19937 random_;
  StrangeNode made_;
  DType main_type_ = DType::f32;
  Dims main_dims_;
};

struct Outcome {
  std::string refusal;  // empty: it ran
  std::vector<Tensor> results;
};

// Throws what is not an Error of the model or its inputs.
Outcome run(const StrangeNode& strange, Isa isa, int threads, int level) {
  Limits limits;
  limits.tensor_bytes = size_t{16} << 20;
  SessionOptions options;
  options.use_cache = false;
  auto context = std::make_shared<RunnerContext>(RunnerContext{.ops = OpRegistry::builtin(),
                                                               .limits = limits,
                                                               .target = {.isa = isa, .threads = threads},
                                                               .team = std::make_shared<ThreadTeam>(threads),
                                                               .packed = std::make_shared<PackedWeights>(),
                                                               .plans = default_plans(options),
                                                               .optimization_level = level});
  Outcome outcome;
  try {
    verify(strange.graph);
    GraphRunner runner(std::make_unique<Graph>(strange.graph), context);
    outcome.results.resize(strange.graph.outputs.size());
    runner.run(strange.inputs, outcome.results, nullptr);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    outcome = {error.what(), {}};
  }
  return outcome;
}

}  // namespace

StrangeNode strange_node(uint32_t seed) { return Maker(seed).make(); }

std::string describe(const StrangeNode& strange) { return to_text(strange.graph); }

std::optional<std::string> fault_of(const StrangeNode& strange, uint32_t seed) {
  try {
    const Isa isa = seed % 2 == 0 ? Isa::avx2 : usable_isa();
    const int threads = 1 + static_cast<int>(seed / 2 % 2);
    const Outcome plain = run(strange, isa, 1, 0), optimized = run(strange, isa, threads, 99);
    if (plain.refusal.empty() != optimized.refusal.empty()) {
      return "at level 0: '" + plain.refusal + "', optimized: '" + optimized.refusal + "'";
    }
    for (size_t i = 0; i < plain.results.size(); ++i) {
      const Tensor &a = plain.results[i], &b = optimized.results[i];
      if (a.dtype() != b.dtype() || a.dims() != b.dims()) {
        return "output " + std::to_string(i) + ": at level 0 " + std::string(name_of(a.dtype())) + to_string(a.dims()) +
               ", optimized " + std::string(name_of(b.dtype())) + to_string(b.dims());
      }
    }
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
  return std::nullopt;
}

}  // namespace lathe::testing
