// com.microsoft's MatMulNBits: a [..., K] times weights of N rows, each of ceil(K / block) blocks of few bits with a
// scale and a zero point each. With 2, 4 or 8 bits they stay small in memory (ops/gemm/bits_product.h).
#include <algorithm>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/gemm/bits_product.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
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

template <class Context>
void check_weights(const Context& context, const Weights& w, const Tensor& packed, const Tensor& scales) {
  checked_bytes(DType::f32, {w.k, w.n});
  if (packed.dtype() != DType::u8 || packed.size() != w.n * w.blocks() * w.blob()) {
    context.fail("the weights are " + to_string(packed.dims()) + ", expected " +
                 to_string(Dims{w.n, w.blocks(), w.blob()}) + " of uint8");
  }
  if (scales.size() != w.n * w.blocks()) context.fail("the scales are " + to_string(scales.dims()));
}

// The weights as float32 [K, N].
template <class Context>
Tensor real_weights(const Context& context, const Tensor& packed, const Tensor& scales, const Tensor& zero_points,
                    const Tensor& groups) {
  const Weights w = weights_of(context);
  check_weights(context, w, packed, scales);
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

// Kernels read these weights as they are. Requires: constant weights.
template <class Context>
bool has_kernels(const Context& context, const Weights& w, DType a) {
  constexpr int64_t kLargestLoweredBlock = 1024;
  return a == DType::f32 && (w.bits == 2 || w.bits == 4 || w.bits == 8) && w.block <= kLargestLoweredBlock &&
         !context.has_input(4);
}

// Where the kernels lack something, constant weights become those of a plain product, packed once.
// Inputs: a, b, scales, zero_points, g_idx, bias.
bool expand_matmul_nbits(ExpandContext& context) {
  if (context.node.attributes.get_int("weight_prepacked", 0) != 0) context.unsupported("attribute 'weight_prepacked'");
  require_inputs(context, {1, 2});
  for (const int i : {1, 2, 3, 4}) {
    if (context.has_input(i) && !context.constant_of(context.input(i)).defined()) return false;
  }
  if (has_kernels(context, weights_of(context), context.input_type(0).dtype)) return false;
  const auto constant = [&](int i) { return context.constant_of(context.input(i)); };
  ValueId b = context.constant(real_weights(context, constant(1), constant(2), constant(3), constant(4)));
  const DType dtype = context.input_type(0).dtype;
  if (dtype != DType::f32) b = context.add("Cast", {b}, {{"to", static_cast<int64_t>(dtype)}});
  ValueId y = context.add("MatMul", {context.input(0), b});
  if (context.has_input(5)) y = context.add("Add", {y, context.input(5)});
  context.set_output(0, y);
  return true;
}

void run_matmul_nbits(ReferenceContext& context) {
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (!context.has_input(i)) context.fail("required input " + std::to_string(i) + " is absent");
  }
  const auto given = [&](size_t i) { return context.has_input(i) ? context.inputs[i] : Tensor(); };
  const Tensor b = real_weights(context, given(1), given(2), given(3), given(4));
  const Tensor& a = context.inputs[0];
  const int64_t k = b.dims()[0], n = b.dims()[1];
  if (a.rank() < 1 || a.dims().back() != k) context.fail("input 0 is " + to_string(a.dims()));
  Dims dims = a.dims();
  dims.back() = n;
  const std::vector<double> rows = reals_of(a),
                            bias = context.has_input(5) ? reals_of(given(5)) : std::vector<double>();
  if (!bias.empty() && static_cast<int64_t>(bias.size()) != n)
    context.fail("the bias is " + to_string(given(5).dims()));
  Tensor y = make_output(context, a.dtype(), dims);
  for (int64_t row = 0; row < y.size() / n; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(column)];
      for (int64_t i = 0; i < k; ++i) {
        sum += rows[static_cast<size_t>(row * k + i)] * static_cast<double>(b.data<float>()[i * n + column]);
      }
      store_real(y, row * n + column, sum);
    }
  }
  context.outputs[0] = std::move(y);
}

// The codes in the order in which BitsProduct reads them: 32 bits of a column, then of its neighbour. In these, as in
// the file, the first row has the lowest bits.
Tensor pack_codes(const Weights& w, const Tensor& given, const PanelFormat& format) {
  constexpr int64_t kGroup = 4;  // bytes
  const int64_t column_bytes = w.blocks() * w.blob();
  Tensor packed = allocate_weights(DType::u8, {format.elements(column_bytes, w.n)});
  uint8_t* out = packed.mutable_data<uint8_t>();
  std::fill_n(out, packed.size(), uint8_t{0});
  for (int64_t panel = 0; panel < format.panels(w.n); ++panel) {
    const int64_t first = panel * format.panel_columns, width = format.width_of(panel, w.n);
    uint8_t* to = out + first * column_bytes;
    for (int64_t n = first; n < std::min(w.n, first + width); ++n) {
      const uint8_t* from = given.data<uint8_t>() + n * column_bytes;
      for (int64_t i = 0; i < column_bytes; i += kGroup)
        std::copy_n(from + i, kGroup, to + i * width + (n - first) * kGroup);
    }
  }
  return packed;
}

// As kernels take them that see a code as 1 + code / 2^bits.
Tensor pack_scales(const std::vector<double>& scales, const std::vector<float>& zeros, const Weights& w,
                   const PanelFormat& format) {
  const int64_t kinds = zeros.empty() ? 1 : 2;
  const auto unit = static_cast<float>(1 << w.bits);
  Tensor packed = allocate_weights(DType::f32, {format.elements(w.blocks(), w.n) * kinds});
  float* out = packed.mutable_data<float>();
  std::fill_n(out, packed.size(), 0.0F);
  for (int64_t n = 0; n < w.n; ++n) {
    const int64_t panel = n / format.panel_columns, first = panel * format.panel_columns;
    const int64_t width = format.width_of(panel, w.n);
    for (int64_t block = 0; block < w.blocks(); ++block) {
      const auto at = static_cast<size_t>(n * w.blocks() + block);
      float* to = out + (first * w.blocks() + block * width) * kinds + n - first;
      to[0] = unit * static_cast<float>(scales[at]);
      if (!zeros.empty()) to[width] = -(unit + zeros[at]) * static_cast<float>(scales[at]);
    }
  }
  return packed;
}

// A LowerContext that names the node in errors, as the checks of the weights want it.
struct LoweredNode {
  const LowerContext& context;
  const Node& node = context.node;
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_model, describe(context.node) + ": " + what);
  }
};

struct BoundBitsProduct {
  std::shared_ptr<const BitsProduct> product;
  BufferId a, codes, scales, bias, c, scratch;
  void operator()(const StepArgs& args) const {
    product->run({.a = args.at<const float>(a),
                  .codes = args.at<const uint8_t>(codes),
                  .scales = args.at<const float>(scales),
                  .bias = bias == BufferId::none ? nullptr : args.at<const float>(bias),
                  .c = args.at<float>(c),
                  .scratch = args.own<float>(scratch)},
                 args.share, args.shares);
  }
};

void add_bits_step(LowerContext& context, const BitsProblem& problem, BoundBitsProduct bound) {
  Step step;
  step.kernel = bound.product->key();
  step.reads = {bound.a, bound.codes, bound.scales, bound.scratch};
  if (bound.bias != BufferId::none) step.reads.push_back(bound.bias);
  step.writes = {bound.c, bound.scratch};
  step.threads = problem.threads;
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n), k = static_cast<double>(problem.k);
  step.flop = 2 * m * n * k;
  step.bytes = 4 * (m * k + m * n) + n * k * problem.bits / 8 +
               (problem.has_offsets ? 8 : 4) * n * static_cast<double>(problem.blocks());
  step.run = std::move(bound);
  context.add(std::move(step));
}

// Rounding A to bytes is off by about 4e-3 of a row's largest element, which is what 4 bits of weights make small:
// where the model says so by accuracy_level 4, or its user by Accuracy::fast.
bool may_round_a(const LowerContext& context, const Weights& w) {
  constexpr int64_t kBytes = 4;
  const Accuracy accuracy = context.target.accuracy;
  if (context.node.attributes.get_int("accuracy_level", 0) == kBytes) return accuracy != Accuracy::strict;
  return accuracy == Accuracy::fast && w.bits <= 4;
}

bool lower_matmul_nbits(LowerContext& context) {
  const LoweredNode checked{context};
  const Weights w = weights_of(checked);
  const TensorType& a = context.input_type(0);
  const Tensor given = context.constant(1), scales = context.constant(2);
  const bool has_zeros = context.has_input(3), has_bias = context.has_input(5);
  if (!has_kernels(context, w, a.dtype) || !given.defined() || !scales.defined()) return false;
  if ((has_zeros && !context.constant(3).defined()) || a.layout.channel_block != 0) return false;
  if (has_bias && (context.input_type(5).dtype != DType::f32 || context.input_type(5).extents() != Dims{w.n}))
    return false;
  check_weights(checked, w, given, scales);
  BitsProblem problem{.m = checked_elements(a.extents()) / w.k,
                      .n = w.n,
                      .k = w.k,
                      .bits = static_cast<int>(w.bits),
                      .block = w.block,
                      .has_offsets = has_zeros,
                      .has_bias = has_bias,
                      .rounds_a = may_round_a(context, w),
                      .isa = context.target.isa};
  if (problem.m == 0 || a.dims.back().extent != w.k) return false;
  // To make a weight float32 takes about as long as ten additions or multiplications: for a few rows it is most of it.
  constexpr double kUnpacking = 10;
  const double weights = static_cast<double>(w.n) * static_cast<double>(w.k);
  problem.threads =
      worthwhile_threads((2.0 * static_cast<double>(problem.m) + kUnpacking) * weights, context.target.threads);
  std::shared_ptr<const BitsProduct> product;
  try {
    product = make_bits_product(problem);
  } catch (const JitError&) {
    return false;
  }
  const PanelFormat format = problem.format();
  const std::string text = "bits " + std::to_string(w.bits) + " panels of " + std::to_string(format.panel_columns);
  const Tensor codes = context.packed(context.input(1), text, [&] { return pack_codes(w, given, format); });
  const Tensor factors = context.packed(context.input(2), text + " of " + context.node.name, [&] {
    const std::vector<float> zeros = has_zeros ? zero_points_of(checked, w, context.constant(3)) : std::vector<float>();
    return pack_scales(reals_of(scales), zeros, w, format);
  });
  const size_t scratch = checked_bytes(DType::f32, {product->scratch_elements()});
  add_bits_step(context, problem,
                {product, context.buffer(context.input(0)), context.constant_buffer(codes),
                 context.constant_buffer(factors), has_bias ? context.buffer(context.input(5)) : BufferId::none,
                 context.buffer(context.output(0)), context.thread_scratch(scratch)});
  return true;
}

}  // namespace

std::vector<OpDef> contrib_matmul_bits_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef product = composite("MatMulNBits", 3, 6, expand_matmul_nbits,
                            {{"K", Kind::integer, true},
                             {"N", Kind::integer, true},
                             {"bits", Kind::integer},
                             {"block_size", Kind::integer, true},
                             {"accuracy_level", Kind::integer},
                             {"weight_prepacked", Kind::integer}});
  product.schema.infer = infer_matmul_nbits;
  product.schema.reference = run_matmul_nbits;
  product.lower = lower_matmul_nbits;
  return {std::move(product)};
}

}  // namespace lathe::ops
