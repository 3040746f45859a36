// com.microsoft's GatherBlockQuantized: rows of a table of few bits, quantized in blocks.
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/gemm/matmul_shape.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

int64_t blocks_of(int64_t elements, int64_t block) { return elements / block + (elements % block != 0 ? 1 : 0); }

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
  return {{.schema = {.name = "GatherBlockQuantized",
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
