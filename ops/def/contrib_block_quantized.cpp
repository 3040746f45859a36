// com.microsoft's operators on weights of few bits, quantized in blocks: MatMulNBits and GatherBlockQuantized.
#include <algorithm>

#include "ops/copy_elements.h"
#include "ops/copy_infer.h"
#include "ops/expansion.h"
#include "ops/matmul_shape.h"
#include "ops/numbers.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

int64_t blocks_of(int64_t elements, int64_t block) { return elements / block + (elements % block != 0 ? 1 : 0); }

// Element `i` of a row of `bits` wide numbers, lowest bits first.
uint32_t bits_at(const uint8_t* row, int64_t i, int64_t bits) {
  const int64_t first = i * bits;
  uint32_t pair = row[first / 8];
  if (first % 8 + bits > 8) pair |= static_cast<uint32_t>(row[first / 8 + 1]) << 8;
  return pair >> (first % 8) & ((1u << bits) - 1);
}

// ---- MatMulNBits: a [..., K] times weights of N rows, each of ceil(K / block) blocks.

struct Weights {
  int64_t k, n, bits, block;
  int64_t blocks() const { return blocks_of(k, block); }
  int64_t blob() const { return block * bits / 8; }  // bytes of one block
};

template <class Context>
Weights weights_of(const Context& context) {
  const Attributes& attributes = context.node.attributes;
  Weights w{attributes.get_int("K", 0), attributes.get_int("N", 0), attributes.get_int("bits", 4),
            attributes.get_int("block_size", 0)};
  constexpr int64_t kLargest = int64_t{1} << 40, kLargestBlock = 1 << 20;
  if (w.k < 1 || w.n < 1 || w.k > kLargest || w.n > kLargest || w.bits < 2 || w.bits > 8 || w.block < 16 ||
      w.block > kLargestBlock || (w.block & (w.block - 1)) != 0) {
    context.fail("has K " + std::to_string(w.k) + ", N " + std::to_string(w.n) + ", " + std::to_string(w.bits) +
                 " bits, blocks of " + std::to_string(w.block));
  }
  return w;
}

void infer_matmul_nbits(InferContext& context) {
  const Weights w = weights_of(context);
  const TensorType& a = context.input(0);
  if (!a.has_rank) return context.set_output(0, TensorType::unranked(a.dtype));
  if (a.rank() < 1) context.fail("input 0 is a scalar");
  const Dim& last = a.dims.back();
  if (last.known() && last.extent != w.k) {
    context.fail("input 0 has " + std::to_string(last.extent) + " columns, expected " + std::to_string(w.k));
  }
  TensorType y = a;
  y.dims.back() = known_dim(w.n);
  context.set_output(0, std::move(y));
}

// The zero point of each block, from packed bits or from numbers; 2^(bits - 1) when there are none.
template <class Context>
std::vector<float> zero_points_of(const Context& context, const Weights& w, const Tensor& given) {
  const auto count = static_cast<size_t>(w.n * w.blocks());
  std::vector<float> result(count, static_cast<float>(1 << (w.bits - 1)));
  if (!given.defined()) return result;
  const int64_t row_bytes = blocks_of(w.blocks() * w.bits, 8);
  if (given.dtype() == DType::u8) {
    if (given.size() != w.n * row_bytes)
      context.fail("the zero points have " + std::to_string(given.size()) + " bytes");
    // One more byte, for the pair that bits_at may look at.
    std::vector<uint8_t> row(static_cast<size_t>(row_bytes) + 1);
    for (int64_t n = 0; n < w.n; ++n) {
      std::copy_n(given.data<uint8_t>() + n * row_bytes, row_bytes, row.begin());
      for (int64_t b = 0; b < w.blocks(); ++b) {
        result[static_cast<size_t>(n * w.blocks() + b)] = static_cast<float>(bits_at(row.data(), b, w.bits));
      }
    }
    return result;
  }
  if (given.size() != w.n * w.blocks()) context.fail("the zero points are " + to_string(given.dims()));
  const std::vector<double> values = reals_of(given);
  std::transform(values.begin(), values.end(), result.begin(), [](double v) { return static_cast<float>(v); });
  return result;
}

// The weights as float32 [K, N].
template <class Context>
Tensor real_weights(const Context& context, const Tensor& packed, const Tensor& scales, const Tensor& zero_points,
                    const Tensor& groups) {
  const Weights w = weights_of(context);
  checked_bytes(DType::f32, {w.k, w.n});
  if (packed.dtype() != DType::u8 || packed.size() != w.n * w.blocks() * w.blob()) {
    context.fail("the weights are " + to_string(packed.dims()) + ", expected " +
                 to_string(Dims{w.n, w.blocks(), w.blob()}) + " of uint8");
  }
  if (scales.size() != w.n * w.blocks()) context.fail("the scales are " + to_string(scales.dims()));
  const std::vector<double> scale = reals_of(scales);
  const std::vector<float> zero = zero_points_of(context, w, zero_points);
  std::vector<int64_t> group;
  if (groups.defined()) {
    group = integers_of_any(groups);
    const bool is_in = std::all_of(group.begin(), group.end(), [&](int64_t g) { return g >= 0 && g < w.blocks(); });
    if (static_cast<int64_t>(group.size()) < w.k || !is_in) context.fail("input 4 (g_idx) fits not the blocks");
  }
  Tensor result(DType::f32, {w.k, w.n});
  float* out = result.mutable_data<float>();
  std::vector<uint8_t> block(static_cast<size_t>(w.blob()) + 1);
  for (int64_t n = 0; n < w.n; ++n) {
    for (int64_t b = 0; b < w.blocks(); ++b) {
      std::copy_n(packed.data<uint8_t>() + (n * w.blocks() + b) * w.blob(), w.blob(), block.begin());
      for (int64_t k = b * w.block; k < std::min(w.k, (b + 1) * w.block); ++k) {
        const auto at = static_cast<size_t>(n * w.blocks() + (group.empty() ? b : group[static_cast<size_t>(k)]));
        const auto element = static_cast<float>(bits_at(block.data(), k - b * w.block, w.bits));
        out[k * w.n + n] = (element - zero[at]) * static_cast<float>(scale[at]);
      }
    }
  }
  return result;
}

// Constant weights become those of a plain product, packed once. Inputs: a, b, scales, zero_points, g_idx, bias.
bool expand_matmul_nbits(ExpandContext& context) {
  if (context.node.attributes.get_int("weight_prepacked", 0) != 0) context.unsupported("attribute 'weight_prepacked'");
  require_inputs(context, {1, 2});
  for (const int i : {1, 2, 3, 4}) {
    if (context.has_input(i) && !context.constant_of(context.input(i)).defined()) return false;
  }
  const auto constant = [&](int i) { return context.constant_of(context.input(i)); };
  ValueId b = context.constant(real_weights(context, constant(1), constant(2), constant(3), constant(4)));
  const DType dtype = context.input_type(0).dtype;
  if (dtype != DType::f32) b = context.add("Cast", {b}, {{"to", static_cast<int64_t>(dtype)}});
  ValueId y = context.add("MatMul", {context.input(0), b});
  if (context.has_input(5)) y = context.add("Add", {y, context.input(5)});
  context.set_output(0, y);
  return true;
}

// ---- GatherBlockQuantized: rows of a quantized table, made real. Inputs: data, indices, scales, zero_points.

struct Table {
  int64_t rank, gather_axis, quantize_axis, block, bits;
  bool is_packed;  // uint8 that holds 8 / bits numbers along the last axis
};

template <class Context>
Table table_of(const Context& context, int64_t rank, DType dtype) {
  const Attributes& attributes = context.node.attributes;
  Table t{rank, 0, 0, attributes.get_int("block_size", 128), attributes.get_int("bits", 4), false};
  t.gather_axis = axis_within(context, attributes.get_int("gather_axis", 0), rank);
  t.quantize_axis = axis_within(context, attributes.get_int("quantize_axis", 1), rank);
  if (t.block < 1) context.fail("attribute 'block_size' is " + std::to_string(t.block));
  if (dtype == DType::u8 && t.bits != 2 && t.bits != 4 && t.bits != 8) {
    context.fail("attribute 'bits' is " + std::to_string(t.bits) + ", expected 2, 4 or 8");
  }
  t.is_packed = dtype == DType::u8 && t.bits < 8;
  if (t.is_packed && t.gather_axis != 0) context.fail("attribute 'gather_axis' must be 0 for uint8");
  return t;
}

void infer_gather(InferContext& context) {
  for (const int i : {0, 1, 2}) {
    if (!context.has_input(i)) context.fail("required input " + std::to_string(i) + " is absent");
  }
  const TensorType &data = context.input(0), &indices = context.input(1);
  TensorType y = TensorType::unranked(context.input(2).dtype);
  if (data.has_rank && indices.has_rank) {
    const Table t = table_of(context, data.rank(), data.dtype);
    std::vector<Dim> dims = data.dims;
    if (t.is_packed && dims.back().known()) {
      const auto unpacked = product_of(dims.back().extent, 8 / t.bits);
      if (!unpacked) context.fail("the table is too large");
      dims.back() = known_dim(*unpacked);
    } else if (t.is_packed) {
      dims.back() = Dim();
    }
    y.has_rank = true;
    y.dims.assign(dims.begin(), dims.begin() + t.gather_axis);
    y.dims.insert(y.dims.end(), indices.dims.begin(), indices.dims.end());
    y.dims.insert(y.dims.end(), dims.begin() + t.gather_axis + 1, dims.end());
  }
  context.set_output(0, std::move(y));
}

// An element of a packed or plain table, as a number.
double element_at(const Tensor& tensor, int64_t i, int64_t bits) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.raw());
  const int64_t width = tensor.dtype() == DType::u8 ? bits : bits_of(tensor.dtype());
  const int64_t per_byte = 8 / width;
  const int value = bytes[i / per_byte] >> (i % per_byte * width) & ((1 << width) - 1);
  const bool is_negative = is_signed(tensor.dtype()) && value >= 1 << (width - 1);
  return is_negative ? value - (1 << width) : value;
}

// The numbers of row-major `outer` x `inner` tables behind the blocks of the axis.
struct BlockIndex {
  AxisSplit split;  // of the data, at the quantized axis
  int64_t block, blocks;
  int64_t operator()(int64_t flat) const {
    const int64_t inner = flat % split.inner, at = flat / split.inner % split.extent;
    const int64_t outer = flat / split.inner / split.extent;
    return (outer * blocks + at / block) * split.inner + inner;
  }
};

void run_gather(ReferenceContext& context) {
  const Tensor &data = context.inputs[0], &scales = context.inputs[2];
  const Tensor zero = context.has_input(3) ? context.inputs[3] : Tensor();
  const DType dtype = data.dtype();
  if (dtype != DType::u8 && dtype != DType::i4 && dtype != DType::u4) context.fail("the table's type is not supported");
  const Table t = table_of(context, data.rank(), dtype);
  const int64_t per_byte = t.is_packed ? 8 / t.bits : 1;
  Dims dims = data.dims();
  dims.back() *= per_byte;
  const BlockIndex block_of{split_at(dims, t.quantize_axis), t.block,
                            blocks_of(dims[static_cast<size_t>(t.quantize_axis)], t.block)};
  const int64_t count = block_of.split.outer * block_of.blocks * block_of.split.inner;
  if (scales.size() != count) context.fail("the scales are " + to_string(scales.dims()));
  // Packed zero points fill whole bytes in each row of the last axis.
  const int64_t columns = scales.dims().empty() ? 1 : scales.dims().back();
  const int64_t row_bytes = blocks_of(columns, per_byte);
  if (zero.defined() && (zero.dtype() != dtype ||
                         zero.size() != (t.is_packed ? count / std::max<int64_t>(columns, 1) * row_bytes : count))) {
    context.fail("the zero points are " + to_string(zero.dims()));
  }
  const auto zero_at = [&](int64_t i) -> double {
    if (!zero.defined()) return dtype == DType::u8 ? 1 << (t.bits - 1) : 0;
    const int64_t at = t.is_packed ? i / columns * row_bytes * per_byte + i % columns : i;
    return element_at(zero, at, t.bits);
  };
  const std::vector<double> scale = reals_of(scales);
  const std::vector<int64_t> indices = integers_of_any(context.inputs[1]);
  const AxisSplit split = split_at(dims, t.gather_axis);
  Dims result(dims.begin(), dims.begin() + t.gather_axis);
  const Dims& picked = context.inputs[1].dims();
  result.insert(result.end(), picked.begin(), picked.end());
  result.insert(result.end(), dims.begin() + t.gather_axis + 1, dims.end());
  Tensor y = make_output(context, scales.dtype(), result);
  int64_t to = 0;
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    for (int64_t row : indices) {
      if (row < -split.extent || row >= split.extent) context.fail("index " + std::to_string(row) + " is too large");
      if (row < 0) row += split.extent;
      for (int64_t inner = 0; inner < split.inner; ++inner, ++to) {
        const int64_t flat = (outer * split.extent + row) * split.inner + inner, block = block_of(flat);
        store_real(y, to, (element_at(data, flat, t.bits) - zero_at(block)) * scale[static_cast<size_t>(block)]);
      }
    }
  }
  context.outputs[0] = std::move(y);
}

}  // namespace

std::vector<OpDef> contrib_block_quantized_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef product = composite("MatMulNBits", 3, 6, expand_matmul_nbits,
                            {{"K", Kind::integer, true},
                             {"N", Kind::integer, true},
                             {"bits", Kind::integer},
                             {"block_size", Kind::integer, true},
                             {"accuracy_level", Kind::integer},
                             {"weight_prepacked", Kind::integer}});
  product.schema.infer = infer_matmul_nbits;
  return {std::move(product),
          {.schema = {.name = "GatherBlockQuantized",
                      .domain = kMicrosoft,
                      .min_inputs = 3,
                      .max_inputs = 4,
                      .attributes = {{"bits", Kind::integer},
                                     {"block_size", Kind::integer},
                                     {"gather_axis", Kind::integer},
                                     {"quantize_axis", Kind::integer}},
                      .infer = infer_gather,
                      .reference = run_gather}}};
}

}  // namespace lathe::ops
