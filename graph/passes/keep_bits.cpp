// Weights of 4 or 8 bits that are dequantized for a product stay as they are: the product becomes com.microsoft's
// MatMulNBits. As float32 they would take 4 to 8 times the memory, and products of few rows wait for nothing else.
#include <algorithm>
#include <bit>
#include <limits>

#include "graph/passes/codes.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int64_t kFewestWeights = 1 << 18;  // fewer stay in cache as float32
// From so many rows on the products take longer than the weights, and bytes are better made float32 once.
constexpr int64_t kManyRows = 8;
constexpr int64_t kSmallestBlock = 16, kLargestBlock = 256;

// Weights of `n` columns and `k` rows; element (row, column) at row * row_stride + column * column_stride.
struct Weights {
  Tensor codes, scales, zeros;  // zeros may be undefined
  int bits = 0;
  int64_t k = 0, n = 0, row_stride = 0, column_stride = 0;
  int64_t block = 0;
  // Of the scale of a block and a column.
  int64_t block_step = 0, scale_step = 0;
  int64_t blocks() const { return (k + block - 1) / block; }
};

// Where no block is given, the one with which a column takes the fewest bytes: a scale and an offset for each block,
// and whole blocks.
int64_t block_for(int64_t k, int bits) {
  int64_t best = kSmallestBlock, fewest = std::numeric_limits<int64_t>::max();
  for (int64_t block = kSmallestBlock; block <= kLargestBlock; block *= 2) {
    const int64_t bytes = (k + block - 1) / block * (block * bits / 8 + 8);
    if (bytes < fewest) best = block;
    fewest = std::min(fewest, bytes);
  }
  return best;
}

bool find_scales(const Node& node, Weights& w, int64_t k_axis) {
  const int64_t given = node.attributes.get_int("axis", 1), axis = given < 0 ? given + 2 : given;
  w.block = node.attributes.get_int("block_size", 0);
  if (w.block > 0) {
    const int64_t extents[] = {k_axis == 0 ? w.blocks() : w.n, k_axis == 0 ? w.n : w.blocks()};
    if (axis != k_axis || w.scales.dims() != Dims{extents[0], extents[1]}) return false;
    w.block_step = k_axis == 0 ? w.n : 1;
    w.scale_step = k_axis == 0 ? 1 : w.blocks();
    return std::has_single_bit(static_cast<uint64_t>(w.block)) && w.block >= kSmallestBlock && w.block <= kLargestBlock;
  }
  w.block = block_for(w.k, w.bits);
  if (w.scales.size() == 1) return true;
  w.scale_step = 1;
  return axis != k_axis && w.scales.rank() == 1 && w.scales.size() == w.n;
}

// The weights behind `id`, a matrix of k rows and n columns, or of n rows and k columns when it is `turned`.
std::optional<Weights> weights_of(const Rewriter& rewriter, const Graph& graph, ValueId id, bool turned) {
  if (const NodeId turn = rewriter.producer_if(id, "Transpose"); turn != NodeId::none) {
    const Node& node = graph.node(turn);
    if (node.epilogue || graph.value(id).type.rank() != 2) return std::nullopt;
    if (node.attributes.get_ints("perm", {1, 0}) == std::vector<int64_t>{1, 0}) turned = !turned;
    id = node.inputs[0];
  }
  const NodeId made = rewriter.producer_if(id, "DequantizeLinear");
  if (made == NodeId::none || graph.value(id).type.dtype != DType::f32) return std::nullopt;
  const Node& node = graph.node(made);
  if (node.epilogue || node.inputs.size() < 2) return std::nullopt;
  Weights w;
  w.codes = constant_of(graph, node.inputs[0]);
  w.scales = constant_of(graph, node.inputs[1]);
  w.zeros = constant_of(graph, input_or_none(node, 2));
  if (!w.codes.defined() || w.codes.rank() != 2 || !w.scales.defined() || w.scales.dtype() != DType::f32)
    return std::nullopt;
  w.bits = bits_of_code(w.codes.dtype());
  const bool has_zeros = input_or_none(node, 2) != ValueId::none;
  if (w.bits == 0 || has_zeros != w.zeros.defined()) return std::nullopt;
  if (has_zeros && (w.zeros.dtype() != w.codes.dtype() || w.zeros.dims() != w.scales.dims())) return std::nullopt;
  const Dims& dims = w.codes.dims();
  w.k = dims[turned ? 1 : 0];
  w.n = dims[turned ? 0 : 1];
  w.row_stride = turned ? 1 : w.n;
  w.column_stride = turned ? w.k : 1;
  if (w.codes.size() < kFewestWeights || !find_scales(node, w, turned ? 1 : 0)) return std::nullopt;
  return w;
}

// [n, blocks, bytes of a block]: a column's codes one behind the other, the lower bits first.
Tensor packed_codes(const Weights& w) {
  const int64_t blob = w.block * w.bits / 8, column_bytes = w.blocks() * blob;
  Tensor packed(DType::u8, {w.n, w.blocks(), blob});
  auto* out = static_cast<uint8_t*>(packed.mutable_raw());
  std::fill_n(out, packed.size(), uint8_t{0});
  const Codes codes(w.codes);
  constexpr int64_t kColumns = 64;  // whose lines stay in cache while the rows pass
  for (int64_t first = 0; first < w.n; first += kColumns) {
    const int64_t end = std::min(w.n, first + kColumns);
    for (int64_t k = 0; k < w.k; ++k) {
      for (int64_t n = first; n < end; ++n) {
        const uint8_t code = codes[k * w.row_stride + n * w.column_stride];
        uint8_t& to = out[n * column_bytes + k * w.bits / 8];
        to = static_cast<uint8_t>(to | code << (k * w.bits % 8));
      }
    }
  }
  return packed;
}

Tensor packed_scales(const Weights& w) {
  Tensor packed(DType::f32, {w.n * w.blocks()});
  auto* out = packed.mutable_data<float>();
  for (int64_t n = 0; n < w.n; ++n)
    for (int64_t block = 0; block < w.blocks(); ++block)
      *out++ = w.scales.data<float>()[block * w.block_step + n * w.scale_step];
  return packed;
}

// One for each block of each column, rows of whole bytes; undefined: all are 2^(bits - 1).
Tensor packed_zeros(const Weights& w) {
  const bool is_signed_code = is_signed(w.codes.dtype());
  if (!w.zeros.defined() && is_signed_code) return {};
  const int64_t row_bytes = (w.blocks() * w.bits + 7) / 8;
  Tensor packed(DType::u8, {w.n, row_bytes});
  auto* out = static_cast<uint8_t*>(packed.mutable_raw());
  std::fill_n(out, packed.size(), uint8_t{0});
  if (!w.zeros.defined()) return packed;
  const Codes zeros(w.zeros);
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t block = 0; block < w.blocks(); ++block) {
      uint8_t& to = out[n * row_bytes + block * w.bits / 8];
      to = static_cast<uint8_t>(to | zeros[block * w.block_step + n * w.scale_step] << (block * w.bits % 8));
    }
  }
  return packed;
}

// Rows of A, where they are known; else 0.
int64_t known_rows(const TensorType& a) {
  if (!a.has_rank) return 0;
  int64_t rows = 1;
  for (int i = 0; i + 1 < a.rank(); ++i) {
    const int64_t extent = a.dims[static_cast<size_t>(i)].extent;
    if (extent < 1 || rows > kManyRows) return extent < 1 ? 0 : rows;
    rows *= extent;
  }
  return rows;
}

bool is_plain_gemm(const Node& node) {
  return node.attributes.get_int("transA", 0) == 0 && node.attributes.get_float("alpha", 1) == 1 &&
         node.attributes.get_float("beta", 1) == 1;
}

void keep_bits_of(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  const bool is_gemm = is_op(node, "Gemm");
  if ((!is_gemm && !is_op(node, "MatMul")) || node.epilogue || (is_gemm && !is_plain_gemm(node))) return;
  const TensorType &a = graph.value(node.inputs[0]).type, &b = graph.value(node.inputs[1]).type;
  if (a.dtype != DType::f32 || b.rank() != 2 || graph.value(node.inputs[0]).is_constant()) return;
  // An operand of bytes is for the products of integers.
  if (rewriter.producer_if(node.inputs[0], "DequantizeLinear") != NodeId::none) return;
  const auto w = weights_of(rewriter, graph, node.inputs[1], is_gemm && node.attributes.get_int("transB", 0) != 0);
  if (!w || (w->bits == 8 && known_rows(a) >= kManyRows)) return;
  const OpSchema* schema = context.ops.find("com.microsoft", "MatMulNBits", 1);
  if (schema == nullptr) return;

  const ValueId result = node.outputs[0], added = input_or_none(node, 2);
  const std::string name = graph.value(node.inputs[1]).name;
  Node product{.op = schema, .name = node.name, .inputs = {node.inputs[0]}};
  product.inputs.push_back(rewriter.add_constant(name, packed_codes(*w)));
  product.inputs.push_back(rewriter.add_constant(name + "_scales", packed_scales(*w)));
  if (const Tensor zeros = packed_zeros(*w); zeros.defined())
    product.inputs.push_back(rewriter.add_constant(name + "_zeros", zeros));
  product.attributes.set("K", w->k);
  product.attributes.set("N", w->n);
  product.attributes.set("bits", static_cast<int64_t>(w->bits));
  product.attributes.set("block_size", w->block);
  if (added == ValueId::none) {
    product.outputs = {ValueId::none};
    rewriter.erase(id);
    return rewriter.move_output(result, rewriter.add(std::move(product), id));
  }
  const ValueId sum = rewriter.add_value(graph.value(result).name, graph.value(result).type);
  product.outputs = {sum};
  Node add{.op = context.ops.find("", "Add", 14), .version = 14, .inputs = {sum, added}, .outputs = {ValueId::none}};
  rewriter.erase(id);
  rewriter.add(std::move(product), id);
  rewriter.move_output(result, rewriter.add(std::move(add), id));
}

}  // namespace

bool keep_bits(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { keep_bits_of(rewriter, context, id); });
}

}  // namespace lathe::passes
