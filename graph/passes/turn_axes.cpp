#include "graph/passes/turn_axes.h"

#include <algorithm>

#include "graph/passes/rearranger.h"

namespace lathe {
namespace {

using Ints = std::vector<int64_t>;

class Turner {
 public:
  Turner(Rewriter& rewriter, const OpLookup& ops, const Node& node, NodeId place, const Ints& perm)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(ops), node_(node), place_(place), perm_(perm) {
    turned_.inputs = node.inputs;
    turned_.perm = perm;
  }

  std::optional<TurnedNode> run() {
    const bool can = is_op(node_, "Pad")                                          ? turn_pads()
                     : is_op(node_, "Resize")                                     ? turn_resize()
                     : is_op(node_, "Slice")                                      ? turn_slice()
                     : is_op(node_, "Split")                                      ? turn_axis(0)
                     : is_one_of(node_, {"Softmax", "LogSoftmax"})                ? node_.version >= 13 && turn_axis(-1)
                     : is_one_of(node_, {"ReduceMean", "ReduceMax", "ReduceMin"}) ? turn_reduction()
                     : is_one_of(node_, {"ReduceSum", "ReduceL2", "ReduceProd"})  ? turn_reduction()
                     : is_lathe_op(node_, "Rotary")                               ? turn_tables()
                     : is_op(node_, "Squeeze")                                    ? turn_squeeze()
                                                                                  : false;
    return can ? std::optional(std::move(turned_)) : std::nullopt;
  }

 private:
  int64_t rank() const { return static_cast<int64_t>(perm_.size()); }
  // The axis above the Transpose; -1: there is none.
  int64_t above(int64_t axis) const {
    if (axis < 0) axis += rank();
    return axis < 0 || axis >= rank() ? -1 : perm_[static_cast<size_t>(axis)];
  }
  std::optional<Ints> above(Ints axes) const {
    for (int64_t& axis : axes) axis = above(axis);
    if (std::find(axes.begin(), axes.end(), -1) != axes.end()) return std::nullopt;
    return axes;
  }

  ValueId integers(const char* what, const Ints& numbers) { return rewriter_.add_integers(node_.name + what, numbers); }

  // The elements of `list` in another order: known ones at once, others when they are.
  ValueId picked(ValueId list, const Ints& from) {
    constexpr int kVersion = 13;
    Node gather;
    gather.op = &ops_.require("", "Gather", kVersion);
    gather.version = kVersion;
    gather.inputs = {list, integers("/order", from)};
    const Value& value = graph_.value(list);
    TensorType type = TensorType::of(value.type.dtype, {static_cast<int64_t>(from.size())});
    gather.outputs = {rewriter_.add_value(value.name, std::move(type))};
    const ValueId result = gather.outputs[0];
    rewriter_.add(std::move(gather), place_);
    return result;
  }

  // A list of one number for each axis, `repeats` times.
  bool is_per_axis(ValueId list, int64_t repeats = 1) const {
    const TensorType& type = graph_.value(list).type;
    return type.has_rank && type.rank() == 1 && type.dims[0].extent == repeats * rank();
  }

  bool turn_axis(int64_t usual) {
    const int64_t axis = above(node_.attributes.get_int("axis", usual));
    if (axis < 0) return false;
    turned_.attributes.emplace_back("axis", axis);
    return true;
  }

  bool turn_pads() {
    const ValueId pads = input_or_none(node_, 1);
    if (node_.version < 11 || pads == ValueId::none || !is_per_axis(pads, 2)) return false;
    if (const ValueId axes = input_or_none(node_, 3); axes != ValueId::none) return false;
    Ints from = inverse_order(perm_);
    for (int64_t axis = 0; axis < rank(); ++axis) from.push_back(from[static_cast<size_t>(axis)] + rank());
    turned_.inputs[1] = picked(pads, from);
    return true;
  }

  bool turn_resize() {
    const std::string mode = node_.attributes.get_string("coordinate_transformation_mode", "half_pixel");
    if (node_.version < 10 || mode == "tf_crop_and_resize") return false;
    if (node_.attributes.has("axes")) {
      const auto axes = above(node_.attributes.get_ints("axes"));
      if (axes) turned_.attributes.emplace_back("axes", *axes);
      return axes.has_value();
    }
    const size_t first = node_.version == 10 ? 1 : 2;
    Ints slots;
    for (size_t slot = first; slot < node_.own_input_count(); ++slot) {
      const ValueId list = node_.inputs[slot];
      if (list == ValueId::none || (graph_.value(list).is_constant() && graph_.value(list).constant.size() == 0)) {
        continue;
      }
      if (!is_per_axis(list)) return false;
      slots.push_back(static_cast<int64_t>(slot));
    }
    for (const int64_t slot : slots) {
      ValueId& list = turned_.inputs[static_cast<size_t>(slot)];
      list = picked(list, inverse_order(perm_));
    }
    return !slots.empty();
  }

  bool turn_slice() {
    if (node_.version < 10) return false;
    const ValueId axes = input_or_none(node_, 3);
    Ints named;
    if (axes == ValueId::none) {
      const TensorType& starts = graph_.value(node_.inputs[1]).type;
      if (!starts.has_rank || starts.rank() != 1 || !starts.dims[0].known()) return false;
      for (int64_t axis = 0; axis < starts.dims[0].extent; ++axis) named.push_back(axis);
    } else if (const auto known = integers_of(graph_, axes)) {
      named = *known;
    } else {
      return false;
    }
    const auto moved = above(named);
    if (!moved) return false;
    if (turned_.inputs.size() < 4) turned_.inputs.resize(4, ValueId::none);
    const bool is_short = axes != ValueId::none && graph_.value(axes).type.dtype == DType::i32;
    if (is_short) {
      const std::vector<int32_t> numbers(moved->begin(), moved->end());
      turned_.inputs[3] = rewriter_.add_constant(
          node_.name + "/axes", Tensor::from<int32_t>({static_cast<int64_t>(numbers.size())}, numbers));
      return true;
    }
    // Starts and axes are of one type.
    if (axes == ValueId::none && graph_.value(node_.inputs[1]).type.dtype != DType::i64) return false;
    turned_.inputs[3] = integers("/axes", *moved);
    return true;
  }

  std::optional<Ints> axes_of(size_t slot) const {
    const ValueId list = input_or_none(node_, slot);
    if (list != ValueId::none) return integers_of(graph_, list);
    return node_.attributes.get_ints("axes");
  }

  void set_axes(Ints axes) {
    std::sort(axes.begin(), axes.end());
    if (input_or_none(node_, 1) != ValueId::none) {
      turned_.inputs[1] = integers("/axes", axes);
    } else {
      turned_.attributes.emplace_back("axes", std::move(axes));
    }
  }

  // What the order of the axes is when these (above the Transpose) are gone.
  void drop_axes(const Ints& gone) {
    const auto is_gone = [&](int64_t axis) { return std::find(gone.begin(), gone.end(), axis) != gone.end(); };
    std::erase_if(turned_.perm, is_gone);
    for (int64_t& axis : turned_.perm) {
      axis -= std::count_if(gone.begin(), gone.end(), [axis](int64_t each) { return each < axis; });
    }
  }

  bool turn_reduction() {
    const auto given = axes_of(1);
    if (!given || given->empty()) return false;
    const auto axes = above(*given);
    if (!axes) return false;
    if (node_.attributes.get_int("keepdims", 1) == 0) drop_axes(*axes);
    set_axes(*axes);
    return true;
  }

  // Cosines and sines that broadcast to the input come in its order of axes; the last one stays the last.
  bool turn_tables() {
    if (perm_.back() != rank() - 1) return false;
    for (size_t slot = 1; slot < 3; ++slot) {
      if (!graph_.value(node_.inputs[slot]).type.has_rank) return false;
    }
    for (size_t slot = 1; slot < 3; ++slot) turned_.inputs[slot] = transposed(whole(node_.inputs[slot]));
    return true;
  }

  Node made(const char* op, std::vector<ValueId> inputs, const std::string& like, TensorType type) {
    constexpr int kVersion = 13;
    return made_node(ops_, op, kVersion, std::move(inputs), rewriter_.add_value(like, std::move(type)));
  }

  // With leading axes of one element, as many as it takes.
  ValueId whole(ValueId table) {
    TensorType type = graph_.value(table).type;
    Ints axes;
    for (int64_t axis = 0; axis < rank() - type.rank(); ++axis) axes.push_back(axis);
    if (axes.empty()) return table;
    type.dims.insert(type.dims.begin(), axes.size(), Dim{1, ""});
    Node node = made("Unsqueeze", {table, integers("/axes", axes)}, graph_.value(table).name, std::move(type));
    const ValueId result = node.outputs[0];
    rewriter_.add(std::move(node), place_);
    return result;
  }

  ValueId transposed(ValueId table) {
    return Rearranger(rewriter_, ops_, place_).transposed(table, inverse_order(perm_));
  }

  bool turn_squeeze() {
    const auto given = axes_of(1);
    if (!given || given->empty()) return false;
    const auto axes = above(*given);
    if (!axes) return false;
    drop_axes(*axes);
    set_axes(*axes);
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  const Node node_;  // a copy: the graph grows meanwhile
  const NodeId place_;
  const Ints& perm_;
  TurnedNode turned_;
};

}  // namespace

std::optional<TurnedNode> turned_node(Rewriter& rewriter, const OpLookup& ops, const Node& node, NodeId place,
                                      const std::vector<int64_t>& perm) {
  return Turner(rewriter, ops, node, place, perm).run();
}

}  // namespace lathe
