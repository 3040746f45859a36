// A product of which GatherElements takes columns at known places makes those columns alone. Attention by relative
// positions multiplies by all distances that there may be, and reads those within its sentence.
#include <algorithm>
#include <limits>
#include <map>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Lengths that differ little read the same columns then, which are weights of their own.
constexpr int64_t kUnit = 32;

struct Columns {
  int64_t begin, end, all;
  bool is_worth_it() const { return 4 * (end - begin) <= 3 * all; }
};

// Known places, which are many, and the same in all layers.
struct Places {
  std::vector<int64_t> numbers;
  int64_t least = std::numeric_limits<int64_t>::max(), most = -1;
  std::map<int64_t, ValueId> moved;  // constants: less the key

  // nullopt: places count from the end, or are not there, of which the operator tells.
  std::optional<Columns> columns_of(int64_t all) const {
    if (numbers.empty() || least < 0 || most >= all) return std::nullopt;
    return Columns{least / kUnit * kUnit, std::min(all, (most / kUnit + 1) * kUnit), all};
  }
};
using AllPlaces = std::map<ValueId, Places>;

Places places_of(const Graph& graph, ValueId known) {
  Places places;
  if (auto numbers = integers_of(graph, known)) places.numbers = std::move(*numbers);
  for (const int64_t place : places.numbers) {
    places.least = std::min(places.least, place);
    places.most = std::max(places.most, place);
  }
  return places;
}

class Trimmer {
 public:
  Trimmer(Rewriter& rewriter, const OpLookup& ops, AllPlaces& places, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(ops), places_(places), id_(id) {}

  void try_node() {
    const Node& gather = graph_.node(id_);
    if (gather.epilogue || !(is_op(gather, "GatherElements") || is_lathe_op(gather, "TakeAlongAxis"))) return;
    const ValueId whole = gather.inputs[0];
    const TensorType& type = graph_.value(whole).type;
    const int64_t axis = gather.attributes.get_int("axis", 0), last = type.rank() - 1;
    if (!type.is_static() || last < 1 || (axis != -1 && axis != last)) return;
    const NodeId product = graph_.value(whole).producer;
    if (product == NodeId::none || !rewriter_.is_live(product) || !is_product(graph_.node(product))) return;
    if (rewriter_.only_user(whole) != id_ || !rewriter_.has_one_use(whole)) return;
    const ValueId known = gather.inputs[1];
    const auto [found, is_new] = places_.try_emplace(known);
    if (is_new) found->second = places_of(graph_, known);
    const auto columns = found->second.columns_of(type.extents().back());
    if (columns && columns->is_worth_it()) trim(product, *columns, known, found->second);
  }

 private:
  bool is_product(const Node& node) const {
    if (!is_op(node, "MatMul") && !is_lathe_op(node, "MatMulViews")) return false;
    return !node.epilogue && !node.attributes.has("perm_y") && graph_.value(node.inputs[1]).is_constant() &&
           graph_.value(node.inputs[1]).type.rank() >= 2;
  }

  void trim(NodeId id, const Columns& columns, ValueId known, Places& places) {
    Node product = graph_.node(id);
    TensorType type = graph_.value(product.outputs[0]).type;
    type.dims.back() = {columns.end - columns.begin, ""};
    const std::vector<int64_t> perm = product.attributes.get_ints("perm_b");
    const int64_t axis = perm.empty() ? graph_.value(product.inputs[1]).type.rank() - 1 : perm.back();
    product.inputs[1] =
        Rearranger(rewriter_, ops_, id_).sliced(product.inputs[1], {{axis, columns.begin, columns.end}});
    product.outputs = {rewriter_.add_value(graph_.value(product.outputs[0]).name, std::move(type))};
    rewriter_.erase(id);
    rewriter_.set_input(id_, 0, product.outputs[0]);
    rewriter_.add(std::move(product), id);
    move_places(known, columns.begin, places);
  }

  void move_places(ValueId known, int64_t begin, Places& places) {
    const auto [constant, is_new] = places.moved.try_emplace(begin);
    if (is_new) {
      Tensor moved(DType::i64, graph_.value(known).constant.dims());
      std::transform(places.numbers.begin(), places.numbers.end(), moved.mutable_data<int64_t>(),
                     [&](int64_t place) { return place - begin; });
      constant->second = rewriter_.add_constant(graph_.value(known).name, std::move(moved));
    }
    rewriter_.set_input(id_, 1, constant->second);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  AllPlaces& places_;
  const NodeId id_;
};

}  // namespace

bool trim_columns(Graph& graph, const PassContext& context) {
  AllPlaces places;
  return rewrite_each(graph,
                      [&](Rewriter& rewriter, NodeId id) { Trimmer(rewriter, context.ops, places, id).try_node(); });
}

}  // namespace lathe::passes
