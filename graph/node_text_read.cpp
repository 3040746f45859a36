// Text to nodes: see node_text.h. The text comes from outside, and what it says is checked like a model.
#include <algorithm>
#include <limits>
#include <utility>

#include "graph/infer.h"
#include "graph/made_up_tensor.h"
#include "graph/node_text.h"
#include "graph/passes/passes.h"
#include "graph/verify.h"
#include "lathe/error.h"
#include "src/base/check.h"
#include "src/base/checked_size.h"
#include "src/base/expression_text.h"

namespace lathe {
namespace {

constexpr size_t kMostOperands = 4096;
constexpr size_t kMostBytes = size_t{2} << 30;  // of all values together
constexpr size_t kHighestRank = 16;

class NodeReader {
 public:
  NodeReader(std::string_view line, const OpLookup& ops, int channel_block)
      : text_(line), ops_(ops), channel_block_(channel_block) {}

  Graph read() {
    do {
      read_node();
    } while (text_.accept(" ; "));
    if (!text_.done()) text_.fail("expected the end or ' ; '");
    for (const ValueId id : made_)
      if (!is_read(id)) graph_.outputs.push_back(id);
    check();
    return std::move(graph_);
  }

 private:
  bool is_read(ValueId id) const {
    return std::any_of(graph_.order().begin(), graph_.order().end(), [&](NodeId node) {
      const std::vector<ValueId>& inputs = graph_.node(node).inputs;
      return std::find(inputs.begin(), inputs.end(), id) != inputs.end();
    });
  }

  void read_node() {
    Node node;
    const std::string_view name = text_.until("@ ");
    const size_t dot = name.rfind('.');
    const std::string_view domain = dot == std::string_view::npos ? "" : name.substr(0, dot);
    text_.expect("@");
    const int64_t version = text_.integer();
    if (version < 1 || version > std::numeric_limits<int>::max()) text_.fail("no such version");
    node.version = static_cast<int>(version);
    node.op = ops_.find(domain, dot == std::string_view::npos ? name : name.substr(dot + 1), node.version);
    if (node.op == nullptr) text_.fail("there is no operator '" + std::string(name) + "' of this version");
    node.name = std::string(node.op->name);
    if (const size_t place = graph_.order().size(); place > 0) node.name += "#" + std::to_string(place);
    if (text_.accept("[")) read_attributes(node.attributes);
    text_.expect("(");
    node.inputs = read_operands();
    text_.expect(" -> ");
    do {
      node.outputs.push_back(read_result());
    } while (text_.accept(", "));
    if (text_.accept(" then ")) read_epilogue(node);
    graph_.add_node(std::move(node));
  }

  void read_epilogue(Node& node) {
    Epilogue epilogue;
    epilogue.expression = read_expression(text_);
    if (text_.accept(" with (")) {
      const std::vector<ValueId> extra = read_operands();
      epilogue.inputs = static_cast<int>(extra.size());
      node.inputs.insert(node.inputs.end(), extra.begin(), extra.end());
    }
    if (epilogue.expression.inputs.size() != static_cast<size_t>(epilogue.inputs) + 1)
      text_.fail("the expression wants " + std::to_string(epilogue.expression.inputs.size()) +
                 " operands, the node's result included");
    node.epilogue = std::move(epilogue);
  }

  void read_attributes(Attributes& attributes) {
    do {
      std::string name(text_.until("=,] "));
      if (name.empty()) text_.fail("expected an attribute");
      text_.expect("=");
      attributes.set(std::move(name), read_attribute());
    } while (text_.accept(", "));
    text_.expect("]");
  }

  Attribute read_attribute() {
    if (text_.starts_with("\"")) return read_string();
    if (text_.accept("tensor ")) return read_constant();
    if (text_.accept("ints[]")) return std::vector<int64_t>();
    if (text_.accept("floats[]")) return std::vector<float>();
    if (text_.accept("strings[]")) return std::vector<std::string>();
    if (!text_.accept("[")) return is_real() ? Attribute(text_.real()) : Attribute(text_.integer());
    if (text_.starts_with("\"")) return read_list([this] { return read_string(); });
    if (is_real()) return read_list([this] { return text_.real(); });
    return read_list([this] { return text_.integer(); });
  }

  template <class Item>
  auto read_list(Item item) -> std::vector<decltype(item())> {
    std::vector<decltype(item())> items;
    do {
      items.push_back(item());
    } while (text_.accept(", "));
    text_.expect("]");
    return items;
  }

  bool is_real() const {
    const std::string_view rest = text_.rest();
    return rest.substr(0, rest.find_first_of(",]")).find_first_of(".en") != std::string_view::npos;
  }

  std::string read_string() {
    text_.expect("\"");
    std::string result;
    while (!text_.accept("\"")) {
      if (text_.accept("\\") || !text_.done()) {
        const std::string_view rest = text_.rest();
        if (rest.empty()) text_.fail("the string does not end");
        result += rest[0];
        text_.accept(rest.substr(0, 1));
      } else {
        text_.fail("the string does not end");
      }
    }
    return result;
  }

  std::vector<ValueId> read_operands() {
    std::vector<ValueId> operands;
    if (text_.accept(")")) return operands;
    do {
      if (operands.size() == kMostOperands) text_.fail("too many operands");
      operands.push_back(read_operand());
    } while (text_.accept(", "));
    text_.expect(")");
    return operands;
  }

  ValueId read_operand() {
    if (text_.accept("_")) return ValueId::none;
    if (text_.accept("#")) {
      const int64_t number = text_.integer();
      if (number < 0 || number >= static_cast<int64_t>(values_.size())) text_.fail("no such value");
      return values_[static_cast<size_t>(number)];
    }
    if (text_.accept("const ")) {
      Tensor tensor = read_constant();
      values_.push_back(graph_.add_constant(next_name(), std::move(tensor)));
    } else {
      values_.push_back(graph_.add_value(next_name(), read_type()));
      graph_.inputs.push_back(values_.back());
    }
    return values_.back();
  }

  ValueId read_result() {
    if (text_.accept("_")) return ValueId::none;
    values_.push_back(graph_.add_value(next_name(), read_type()));
    made_.push_back(values_.back());
    return values_.back();
  }

  std::string next_name() const { return "#" + std::to_string(values_.size()); }

  DType read_dtype() {
    const std::string_view name = text_.until("[");
    for (int i = 1; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (name_of(dtype) == name && bits_of(dtype) > 0) return dtype;
    }
    text_.fail("expected an element type");
  }

  Dims read_extents() {
    Dims dims;
    text_.expect("[");
    while (!text_.accept("]")) {
      if (!dims.empty()) text_.expect(",");
      if (dims.size() == kHighestRank) text_.fail("the rank is too high");
      dims.push_back(text_.integer());
    }
    return dims;
  }

  // As storage_bytes() will count them: every value has to fit into memory with all others.
  void count_bytes(const TensorType& type) {
    try {
      bytes_ = checked_add(bytes_, type.storage_bytes());
    } catch (const Error& error) {
      text_.fail(error.what());
    }
    if (bytes_ > kMostBytes) text_.fail("the operands are too large");
  }

  TensorType read_type() {
    const DType dtype = read_dtype();
    TensorType type = TensorType::of(dtype, read_extents());
    if (text_.accept("{c")) {
      const int64_t block = text_.integer();
      text_.expect("}");
      if (block < 2 || block > 64 || type.rank() < 3) text_.fail("no such layout");
      if (block != channel_block_)
        throw Error(ErrorCode::unsupported, "the task is for blocks of " + std::to_string(block) +
                                                " channels, here they have " + std::to_string(channel_block_));
      type.layout.channel_block = channel_block_;
    }
    count_bytes(type);
    return type;
  }

  Tensor read_constant() {
    const DType dtype = read_dtype();
    const Dims dims = read_extents();
    count_bytes(TensorType::of(dtype, dims));
    if (!text_.accept("{")) return made_up_tensor(dtype, dims);
    Tensor tensor(dtype, dims);
    read_elements(tensor);
    return tensor;
  }

  void read_elements(Tensor& tensor) {
    switch (tensor.dtype()) {
      case DType::f32:
        return read_reals<float>(tensor);
      case DType::f64:
        return read_reals<double>(tensor);
      case DType::i8:
        return read_integers<int8_t>(tensor);
      case DType::u8:
        return read_integers<uint8_t>(tensor);
      case DType::boolean:
        return read_integers<uint8_t>(tensor, 1);
      case DType::i16:
        return read_integers<int16_t>(tensor);
      case DType::i32:
        return read_integers<int32_t>(tensor);
      case DType::u32:
        return read_integers<uint32_t>(tensor);
      case DType::i64:
        return read_integers<int64_t>(tensor);
      case DType::u64:
        return read_integers<uint64_t>(tensor);
      default:
        text_.fail("elements of this type are not listed");
    }
  }

  template <class T>
  void read_reals(Tensor& tensor) {
    T* elements = tensor.mutable_data<T>();
    for (int64_t i = 0; i < tensor.size(); ++i) {
      if (i > 0 && i == 1 && text_.accept("..")) {
        if (static_cast<T>(text_.real64()) != elements[0]) text_.fail("of real numbers, both ends are equal");
        std::fill(elements, elements + tensor.size(), elements[0]);
        break;
      }
      if (i > 0) text_.expect(", ");
      elements[i] = static_cast<T>(text_.real64());
    }
    if (tensor.size() == 1 && text_.accept("..")) (void)text_.real64();
    text_.expect("}");
  }

  template <class T>
  T read_integer(uint64_t largest) {
    const int64_t value = text_.integer();
    const bool fits = value >= 0 ? static_cast<uint64_t>(value) <= largest
                                 : value >= static_cast<int64_t>(std::numeric_limits<T>::min());
    if (!fits || (value < 0 && !std::is_signed_v<T>)) text_.fail("the element does not fit its type");
    return static_cast<T>(value);
  }

  template <class T>
  void read_integers(Tensor& tensor, uint64_t largest = static_cast<uint64_t>(std::numeric_limits<T>::max())) {
    if (tensor.size() == 0) text_.fail("there are no elements");
    T* elements = tensor.mutable_data<T>();
    elements[0] = read_integer<T>(largest);
    if (text_.accept("..")) {
      const T last = read_integer<T>(largest);
      if (last < elements[0]) text_.fail("the range is empty");
      // Spread over the range, and both ends of it: what a kernel can tell from the elements stays as it was.
      const uint64_t first = static_cast<uint64_t>(elements[0]), span = static_cast<uint64_t>(last) - first;
      for (int64_t i = 2; i < tensor.size(); ++i) {
        const uint64_t step = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15U >> 16;
        elements[i] = static_cast<T>(first + (span == 0 ? 0 : step % (span + 1 == 0 ? span : span + 1)));
      }
      if (tensor.size() > 1) elements[1] = last;
    } else {
      for (int64_t i = 1; i < tensor.size(); ++i) {
        text_.expect(", ");
        elements[i] = read_integer<T>(largest);
      }
    }
    text_.expect("}");
  }

  // Sizes, types and layouts as lowering may rely on them.
  void check() {
    try {
      verify(graph_);
      for (const NodeId id : graph_.order()) check_node(id);
    } catch (const Error& error) {
      // Ours, which tell the place already.
      if (error.code() == ErrorCode::internal || error.code() == ErrorCode::invalid_argument) throw;
      text_.fail(error.what());
    }
  }

  void check_node(NodeId id) {
    const Node& node = graph_.node(id);
    const std::vector<TensorType> inferred = infer_node(graph_, node);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == ValueId::none) continue;
      const TensorType& declared = graph_.value(node.outputs[i]).type;
      TensorType plain = declared;
      plain.layout = {};
      TensorType wanted = i < inferred.size() ? inferred[i] : TensorType();
      wanted.layout = {};
      if (!(wanted == plain)) text_.fail("the result is " + to_string(wanted) + ", not " + to_string(plain));
    }
    if (node.epilogue) check_epilogue(node);
    if (!passes::has_fitting_layouts(graph_, id, channel_block_)) text_.fail("the layouts do not fit the operator");
  }

  void check_epilogue(const Node& node) {
    if (!node.op->fuses_epilogue && !passes::takes_quantization(graph_, node))
      text_.fail("nothing can be fused into this operator");
    Node bare = node;
    const size_t own = node.inputs.size() - static_cast<size_t>(node.epilogue->inputs);
    const bool is_pointwise = node.op->domain == "lathe" && node.op->name == "Pointwise";
    bare.inputs.resize(own);
    bare.epilogue.reset();
    const TensorType& result = graph_.value(node.outputs[0]).type;
    const std::vector<DType>& wanted = node.epilogue->expression.inputs;
    const DType first = is_pointwise ? graph_.value(node.inputs[0]).type.dtype : infer_node(graph_, bare).at(0).dtype;
    if (wanted[0] != first) text_.fail("the expression is of other element types");
    for (size_t i = 1; i < wanted.size(); ++i) {
      const TensorType& type = graph_.value(node.inputs[own + i - 1]).type;
      if (type.dtype != wanted[i]) text_.fail("the expression is of other element types");
      bool broadcasts = type.rank() <= result.rank();
      for (int axis = 1; broadcasts && axis <= type.rank(); ++axis) {
        const int64_t extent = type.dims[static_cast<size_t>(type.rank() - axis)].extent;
        broadcasts = extent == 1 || extent == result.dims[static_cast<size_t>(result.rank() - axis)].extent;
      }
      if (!broadcasts) text_.fail(to_string(type) + " does not broadcast to " + to_string(result));
    }
  }

  TextReader text_;
  const OpLookup& ops_;
  int channel_block_;
  Graph graph_;
  std::vector<ValueId> values_;  // by their number
  std::vector<ValueId> made_;    // by the nodes
  size_t bytes_ = 0;
};

}  // namespace

Graph read_nodes(std::string_view line, const OpLookup& ops, int channel_block) {
  return NodeReader(line, ops, channel_block).read();
}

}  // namespace lathe
