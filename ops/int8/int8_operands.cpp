#include "ops/int8/int8_operands.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/int8/int8_crossed.h"
#include "ops/int8/large_bytes.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Packs matrices [first, last) of B, and the sums of their columns, or what these add when crossed, behind all of them.
void pack_matrices(const Int8Lowering& l, const Int8ColumnSums& sums, const void* data, const ByteZeros& zeros,
                   Range range, char* out, int32_t* sums_out) {
  for (int64_t i = range.begin; i < range.end; ++i) {
    char* to = out + i * l.matrix_bytes();
    pack_int8(l.b_matrix(data, i), l.format, zeros, to);
    if (l.problem.dot == Int8Dot::crossed) {
      crossed_column_sums(to, l.format, l.problem.k, l.problem.n, sums_out + i * l.padded());
    } else if (l.problem.dot != Int8Dot::pairs) {
      sums(to, l.problem.k, l.problem.n, sums_out + i * l.padded());
    }
  }
}

// The zero point for all; `at`: its buffer, when it is not known.
int32_t only(const ZeroPoints& zeros, BufferId at, const StepArgs& args) {
  return zeros.view(at == BufferId::none ? nullptr : args.at<const void>(at)).at(0);
}

// -a_zero * sum(B) + k * a_zero * b_zero for one column; of what crossing adds, with 1 and 0 for these.
int32_t column_term(int32_t sum, int32_t a_zero, int32_t b_zero, int64_t k) {
  // Wraps around as the sums do.
  return static_cast<int32_t>(static_cast<uint32_t>(a_zero) *
                              (static_cast<uint32_t>(b_zero) * static_cast<uint32_t>(k) - static_cast<uint32_t>(sum)));
}

PackedB pack_ahead(const Int8Lowering& l, const LowerContext& context, ValueId source) {
  std::string text = fmt::format("int8 {} {}x{}x{} panel {} lanes {} strides {} {} zeros", to_string(l.problem.dot),
                                 l.b_count(), l.problem.k, l.problem.n, l.format.panel_columns,
                                 vector_lanes(l.format.isa), l.node.b.row_stride, l.node.b.column_stride);
  if (is_wide(l.problem.dot)) {
    for (const int32_t zero : l.node.b_zero.values) text += " " + std::to_string(zero);
  }
  const int64_t packed_bytes = l.b_count() * l.matrix_bytes();
  const Tensor weights = context.packed(source, text, [&] {
    Tensor packed = allocate_weights(DType::u8, {packed_bytes + l.b_count() * l.padded() * 4});
    auto* out = static_cast<char*>(packed.mutable_raw());
    pack_matrices(l, Int8ColumnSums(l.format), context.graph.value(source).constant.raw(), l.node.b_zero.view(nullptr),
                  {0, l.b_count()}, out, reinterpret_cast<int32_t*>(out + packed_bytes));
    return packed;
  });
  return {context.constant_buffer(weights), weights};
}

PackedB pack_at_run(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  const int64_t packed_bytes = l->b_count() * l->matrix_bytes();
  const BufferId to = context.scratch(checked_bytes(DType::u8, {packed_bytes + l->b_count() * l->padded() * 4}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.b_zero.is_known() ? BufferId::none : context.buffer(l->node.b_zero.value);
  Step step;
  step.kernel = "pack int8 " + to_string(l->problem.dot);
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  step.bytes = 2.0 * static_cast<double>(packed_bytes);
  step.threads =
      static_cast<int>(std::min<int64_t>(l->b_count(), worthwhile_threads(step.bytes * 10, context.target.threads)));
  step.run = [=, sums = Int8ColumnSums(l->format)](const StepArgs& args) {
    const ByteZeros zeros = l->node.b_zero.view(zero == BufferId::none ? nullptr : args.at<const void>(zero));
    auto* out = args.at<char>(to);
    pack_matrices(*l, sums, args.at<const void>(from), zeros, split_evenly(l->b_count(), args.share, args.shares), out,
                  reinterpret_cast<int32_t*>(out + packed_bytes));
  };
  context.add(std::move(step));
  return {to, {}};
}

}  // namespace

PackedB packed_b(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  const bool is_known =
      context.graph.value(source).is_constant() && (!is_wide(l->problem.dot) || l->node.b_zero.is_known());
  return is_known ? pack_ahead(*l, context, source) : pack_at_run(l, context, source);
}

BufferId column_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, const PackedB& b) {
  const int64_t count = l->b_count() * l->padded(), k = l->problem.k;
  const int b_shift = l->b_shift();
  const auto fill = [=](const char* packed, int32_t a_zero, int32_t b_zero, int32_t* out) {
    const auto* sums = reinterpret_cast<const int32_t*>(packed + l->b_count() * l->matrix_bytes());
    for (int64_t i = 0; i < count; ++i) out[i] = column_term(sums[i], l->zero_of_copied(a_zero), b_zero + b_shift, k);
  };
  const bool is_crossed = l->problem.dot == Int8Dot::crossed;
  const ZeroPoints a_zero = is_crossed ? ZeroPoints{.values = {1}} : l->node.a_zero;
  const ZeroPoints b_zero = is_crossed ? ZeroPoints{.values = {0}} : l->node.b_zero;
  if (l->problem.dot == Int8Dot::pairs || (a_zero.is_zero() && l->zero_of_copied(0) == 0)) {
    return context.constant_buffer(Tensor(DType::i32, {count}));
  }
  if (b.weights.defined() && a_zero.is_known() && b_zero.is_known()) {
    Tensor terms(DType::i32, {count});
    fill(static_cast<const char*>(b.weights.raw()), a_zero.values[0], b_zero.values[0], terms.mutable_data<int32_t>());
    return context.constant_buffer(terms);
  }
  const BufferId to = context.scratch(checked_bytes(DType::i32, {count}));
  const BufferId a_at = a_zero.is_known() ? BufferId::none : context.buffer(a_zero.value);
  const BufferId b_at = b_zero.is_known() ? BufferId::none : context.buffer(b_zero.value);
  Step step;
  step.kernel = "column terms";
  step.reads = {b.buffer};
  for (const BufferId each : {a_at, b_at}) {
    if (each != BufferId::none) step.reads.push_back(each);
  }
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(count);
  step.run = [=, packed = b.buffer](const StepArgs& args) {
    fill(args.at<const char>(packed), only(a_zero, a_at, args), only(b_zero, b_at, args), args.at<int32_t>(to));
  };
  context.add(std::move(step));
  return to;
}

namespace {

// A, and what is made of its rows alone: equal for products of one value by several matrices, as for queries, keys and
// values. None: not the same for all products of a batch.
std::optional<std::string> key_of_rows(const Int8Lowering& l, BufferId a) {
  if (l.a_count() != 1 || is_wide(l.problem.dot)) return std::nullopt;
  return fmt::format("{}{} of {}x{} in {} from {} by {}", to_string(l.problem.dot), l.inverts_a ? " inverted" : "",
                     l.problem.m, l.problem.k, static_cast<int>(a), l.node.a.offsets[0], l.node.a.row_stride);
}

// As make() does, once for each key.
template <class Make>
BufferId made_once(const LowerContext& context, const std::optional<std::string>& key, const std::string& what,
                   Make make) {
  return key ? *context.shared<BufferId>(what + " " + *key, make) : make();
}

BufferId add_row_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  const BufferId to = context.scratch(checked_bytes(DType::i32, {l->a_count(), l->problem.m}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.b_zero.is_known() ? BufferId::none : context.buffer(l->node.b_zero.value);
  Step step;
  step.kernel = "row terms";
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  step.bytes = static_cast<double>(l->a_count() * l->problem.m * l->problem.k);
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [=, shift = l->b_shift(),
              sum_rows = NegatedRowSums(l->problem.isa, l->a_is_signed)](const StepArgs& args) {
    const int32_t b_zero = only(l->node.b_zero, zero, args) + shift;
    // By a row that is copied; wraps around as the sums do.
    const auto moved = static_cast<uint32_t>(l->problem.k) * static_cast<uint32_t>(l->a_shift());
    const Range range = split_evenly(l->a_count() * l->problem.m, args.share, args.shares);
    for (int64_t row = range.begin; row < range.end;) {
      const int64_t matrix = row / l->problem.m, first = row % l->problem.m;
      ByteMatrix part = l->a_matrix(args.at<const void>(from), matrix);
      part.data = static_cast<const char*>(part.data) + first * part.row_stride;
      part.rows = std::min<int64_t>(range.end - row, l->problem.m - first);
      int32_t* terms = args.at<int32_t>(to) + row;
      sum_rows(part, b_zero, terms);
      for (int64_t i = 0; i < part.rows; ++i) {
        terms[i] = static_cast<int32_t>(static_cast<uint32_t>(terms[i]) - static_cast<uint32_t>(b_zero) * moved);
      }
      row += part.rows;
    }
  };
  context.add(std::move(step));
  return to;
}

BufferId add_copied_a(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source,
                      BufferId terms) {
  const int64_t row_bytes = l->problem.groups() * 4, rows = l->a_count() * l->problem.m;
  const BufferId to = context.scratch(checked_bytes(DType::u8, {rows, row_bytes}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.a_zero.is_known() ? BufferId::none : context.buffer(l->node.a_zero.value);
  Step step;
  const bool is_crossed = l->problem.dot == Int8Dot::crossed;
  step.kernel = is_crossed                ? "widen and cross rows"
                : is_wide(l->problem.dot) ? "widen rows"
                : l->inverts_a            ? "invert rows"
                : l->a_shift() != 0       ? "move rows"
                                          : "pad rows";
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  if (is_crossed) step.writes.push_back(terms);
  step.bytes = 2.0 * static_cast<double>(rows * row_bytes);
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [=](const StepArgs& args) {
    const ByteZeros zeros = l->node.a_zero.view(zero == BufferId::none ? nullptr : args.at<const void>(zero));
    const Range range = split_evenly(rows, args.share, args.shares);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t i = row % l->problem.m;
      ByteMatrix part = l->a_matrix(args.at<const void>(from), row / l->problem.m);
      part.data = static_cast<const char*>(part.data) + i * part.row_stride;
      part.rows = 1;
      char* copied = args.at<char>(to) + row * row_bytes;
      if (l->inverts_a)
        invert_int8_rows(part, copied);
      else
        copy_int8_rows(part, l->problem.dot, zeros, i, copied);
      if (is_crossed) crossed_row_terms(copied, 1, l->problem.groups(), row_bytes, args.at<int32_t>(terms) + row);
    }
  };
  context.add(std::move(step));
  return to;
}

BufferId add_finder(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                    int64_t a_stride) {
  const RowTiles tiles = row_tiles(l->plan, l->problem.m, l->problem.threads);
  const int64_t parts = large_parts(l->problem, l->plan), part_bytes = l->plan.k_unroll * 4;
  const int64_t row_bytes = l->problem.groups() * 4;
  const bool is_signed = l->problem.dot == Int8Dot::s8u8_halved;
  const BufferId to = context.scratch(checked_bytes(DType::u8, {tiles.count, parts}));
  Step step;
  step.kernel = "find large bytes";
  step.reads = {a};
  step.writes = {to};
  step.bytes = static_cast<double>(l->problem.m * row_bytes + tiles.count * parts);
  step.threads =
      static_cast<int>(std::min<int64_t>(tiles.count, worthwhile_threads(step.bytes * 20, context.target.threads)));
  step.run = [=](const StepArgs& args) {
    const Range range = split_evenly(tiles.count, args.share, args.shares);
    for (int64_t tile = range.begin; tile < range.end; ++tile) {
      const std::span<LargeBytes> large(args.at<LargeBytes>(to) + tile * parts, static_cast<size_t>(parts));
      std::fill(large.begin(), large.end(), LargeBytes::none);
      for (int64_t row = tiles.row_of(tile); row < tiles.row_of(tile + 1); ++row) {
        const auto* bytes = args.at<const uint8_t>(a) + row * a_stride;
        is_signed ? find_large_parts(reinterpret_cast<const int8_t*>(bytes), row_bytes, part_bytes, large.data())
                  : find_large_parts(bytes, row_bytes, part_bytes, l->most_together, large.data());
      }
      if (!is_signed) prefer_one_way(large);
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace

BufferId row_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  std::optional<std::string> key = key_of_rows(*l, context.buffer(source));
  if (!l->node.b_zero.is_known()) key.reset();
  if (key) *key += fmt::format(" times {}", l->node.b_zero.values[0] + l->b_shift());
  return made_once(context, key, "row terms", [&] { return add_row_terms(l, context, source); });
}

BufferId copied_a(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source,
                  BufferId terms) {
  return made_once(context, key_of_rows(*l, context.buffer(source)), "rows",
                   [&] { return add_copied_a(l, context, source, terms); });
}

BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride) {
  std::optional<std::string> key = key_of_rows(*l, a);
  const RowTiles tiles = row_tiles(l->plan, l->problem.m, l->problem.threads);
  if (key)
    *key += fmt::format(" in {} tiles, parts of {} groups, beyond {}, {} bytes a row", tiles.count, l->plan.k_unroll,
                        l->most_together, a_stride);
  return made_once(context, key, "large bytes", [&] { return add_finder(l, context, a, a_stride); });
}

}  // namespace lathe
