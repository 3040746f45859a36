// Heads of queries that share a head of keys and values (grouped-query attention), as exporters write it: keys and
// values are spread over the heads that share them, Unsqueeze -> Expand -> Reshape, before the products. Attention
// reads them once: the heads of a group are an axis of their own, over which K and V broadcast, or, of a single query
// each, the rows of one product.
#include <algorithm>
#include <numeric>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"
#include "src/base/axis_order.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v", "perm_y"};
enum Operand : size_t { kQ, kK, kV, kY, kCount };  // further inputs of the scores stand behind V, too

// reshape(expand(once)): each place of `axis` of the value stands there `count` times, one behind the other. `once` has
// an axis of extent 1 more, behind that one.
struct Spread {
  ValueId once = ValueId::none;
  int64_t axis = 0, count = 1;
};

std::optional<Spread> spread_behind(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId reshape = rewriter.producer_if(value, "Reshape");
  if (reshape == NodeId::none) return std::nullopt;
  const ValueId expanded = graph.node(reshape).inputs[0];
  const NodeId expand = rewriter.producer_if(expanded, "Expand");
  if (expand == NodeId::none || graph.node(expand).epilogue || graph.node(reshape).epilogue) return std::nullopt;
  const ValueId once = graph.node(expand).inputs[0];
  const TensorType &joined = graph.value(value).type, &apart = graph.value(expanded).type;
  const TensorType& before = graph.value(once).type;
  for (const TensorType* type : {&joined, &apart, &before}) {
    if (!type->is_static()) return std::nullopt;
  }
  if (apart.rank() != joined.rank() + 1 || before.rank() != apart.rank()) return std::nullopt;
  Ints from = before.extents(), to = apart.extents();
  const auto [a, b] = std::mismatch(from.begin(), from.end(), to.begin());
  if (a == from.end() || a == from.begin() || *a != 1 || !std::equal(a + 1, from.end(), b + 1)) return std::nullopt;
  const Spread spread{once, a - from.begin() - 1, *b};
  to[static_cast<size_t>(spread.axis)] *= spread.count;
  to.erase(to.begin() + spread.axis + 1);
  return to == joined.extents() ? std::optional(spread) : std::nullopt;
}

// An operand as it is stored, and where each axis that attention reads lies.
struct View {
  Ints extents, places;

  void split(int64_t axis, int64_t inner) {
    const int64_t place = places[static_cast<size_t>(axis)];
    extents[static_cast<size_t>(place)] /= inner;
    extents.insert(extents.begin() + place + 1, inner);
    shift(place, 1);
    places.insert(places.begin() + axis + 1, place + 1);
  }
  // Requires: of extent 1.
  void drop(int64_t axis) {
    const int64_t place = places[static_cast<size_t>(axis)];
    extents.erase(extents.begin() + place);
    places.erase(places.begin() + axis);
    shift(place, -1);
  }
  int64_t extent(int64_t axis) const { return extents[static_cast<size_t>(places[static_cast<size_t>(axis)])]; }

 private:
  void shift(int64_t place, int64_t by) {
    for (int64_t& each : places) each += each > place ? by : 0;
  }
};

class Sharer {
 public:
  Sharer(Rewriter& rewriter, const OpLookup& ops, NodeId id)
      : rewriter_(rewriter),
        graph_(rewriter.graph()),
        rearranger_(rewriter, ops, id),
        id_(id),
        made_(graph_.node(id)) {}

  // Requires: an Attention.
  void try_node() {
    if (made_.attributes.has("parts") || made_.attributes.has("sum_input")) return;
    heads_ = made_.attributes.get_ints("heads", Ints(kCount, 0));
    if (heads_.size() != kCount || heads_[kK] != 0 || heads_[kV] != 0 || !has_extents()) return;
    const auto keys = spread_behind(rewriter_, graph_, made_.inputs[kK]);
    const auto values = spread_behind(rewriter_, graph_, made_.inputs[kV]);
    if (!keys || !values || keys->count != values->count) return;
    group_ = keys->count;
    View views[] = {view_of(kQ), view_of(kK), view_of(kV), view_of(kY)};
    rank_ = static_cast<int64_t>(views[kQ].places.size());
    for (axis_ = 0; axis_ + 2 < rank_ && views[kK].places[static_cast<size_t>(axis_)] != keys->axis;) ++axis_;
    if (axis_ + 2 >= rank_ || views[kV].places[static_cast<size_t>(axis_)] != values->axis) return;
    const int64_t heads = views[kK].extent(axis_);
    if (views[kQ].extent(axis_) != heads || views[kY].extent(axis_) != heads || !have_fitting_heads(heads)) return;
    const bool are_rows = axis_ + 3 == rank_ && views[kQ].extent(rank_ - 2) == 1;
    for (View& view : views) view.split(axis_, group_);
    for (const size_t slot : {size_t{kK}, size_t{kV}}) {
      made_.inputs[slot] = (slot == kK ? keys : values)->once;
      views[slot].extents[static_cast<size_t>(views[slot].places[static_cast<size_t>(axis_ + 1)])] = 1;
    }
    // The only query of each head makes way for the heads of a group.
    if (are_rows) {
      for (const size_t slot : {size_t{kQ}, size_t{kY}}) views[slot].drop(axis_ + 2);
      for (const size_t slot : {size_t{kK}, size_t{kV}}) views[slot].drop(axis_ + 1);
    }
    take_further_inputs(are_rows);
    put_in_place(views);
  }

 private:
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }

  bool has_extents() const {
    const auto has_some = [&](ValueId id) {
      if (id == ValueId::none || !type(id).is_static()) return false;
      const Ints extents = type(id).extents();
      return std::find(extents.begin(), extents.end(), 0) == extents.end();  // to a Reshape another word
    };
    return has_some(made_.outputs[0]) && std::all_of(made_.inputs.begin(), made_.inputs.end(), has_some);
  }

  View view_of(Operand which) const {
    View view{type(which == kY ? made_.outputs[0] : made_.inputs[which]).extents(), {}};
    if (heads_[which] != 0) {
      view.extents.back() /= heads_[which];
      view.extents.insert(view.extents.end() - 1, heads_[which]);
    }
    view.places = made_.attributes.get_ints(kPerms[which]);
    if (view.places.empty()) {
      view.places.resize(view.extents.size());
      std::iota(view.places.begin(), view.places.end(), 0);
    }
    // The result's order says the reverse: which axis lies at each place.
    if (which == kY) view.places = inverse_order(view.places);
    return view;
  }

  // Where a further input has the axis of heads; negative: it has none.
  int64_t heads_axis_of(ValueId input) const { return axis_ - (rank_ - type(input).rank()); }

  bool have_fitting_heads(int64_t heads) const {
    return std::all_of(made_.inputs.begin() + kY, made_.inputs.end(), [&](ValueId input) {
      const int64_t at = heads_axis_of(input);
      if (at < 0 || type(input).layout.channel_block != 0) return at < 0;
      const int64_t extent = type(input).dims[static_cast<size_t>(at)].extent;
      return extent == 1 || extent == heads;
    });
  }

  void take_further_inputs(bool are_rows) {
    for (size_t slot = kY; slot < made_.inputs.size(); ++slot) {
      const int64_t at = heads_axis_of(made_.inputs[slot]);
      if (at < 0) continue;
      Ints extents = type(made_.inputs[slot]).extents();
      const bool is_one = extents[static_cast<size_t>(at)] == 1;
      extents[static_cast<size_t>(at)] /= is_one ? 1 : group_;
      extents.insert(extents.begin() + at + 1, is_one ? 1 : group_);
      if (are_rows) extents.erase(extents.begin() + at + 2);
      made_.inputs[slot] = rearranger_.reshaped(made_.inputs[slot], extents);
    }
  }

  void put_in_place(View (&views)[kCount]) {
    const ValueId result = made_.outputs[0];
    for (const size_t slot : {size_t{kQ}, size_t{kK}, size_t{kV}}) {
      if (type(made_.inputs[slot]).extents() == views[slot].extents) continue;
      made_.inputs[slot] = rearranger_.reshaped(made_.inputs[slot], views[slot].extents);
    }
    TensorType stored = type(result);
    const Ints extents = stored.extents();
    stored.dims.clear();
    for (const int64_t extent : views[kY].extents) stored.dims.push_back({extent, ""});
    made_.outputs[0] = rewriter_.add_value(graph_.value(result).name, std::move(stored));
    views[kY].places = inverse_order(views[kY].places);
    for (size_t i = 0; i < kCount; ++i) {
      made_.attributes.erase(kPerms[i]);
      if (!is_same_order(views[i].places)) made_.attributes.set(kPerms[i], views[i].places);
    }
    made_.attributes.erase("heads");
    const ValueId attended = made_.outputs[0];
    rewriter_.erase(id_);
    rewriter_.add(std::move(made_), id_);
    rearranger_.reshaped(attended, extents, result);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  Rearranger rearranger_;
  const NodeId id_;
  Node made_;
  Ints heads_;
  int64_t rank_ = 0, axis_ = 0;  // of what attention reads, and of the heads there
  int64_t group_ = 1;            // heads that share one of K and V
};

}  // namespace

bool share_heads(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (is_lathe_op(graph.node(id), "Attention")) Sharer(rewriter, context.ops, id).try_node();
  });
}

}  // namespace lathe::passes
