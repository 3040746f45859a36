// lathe::SequencePositions and lathe::CacheAppend: where the new tokens of each sequence of a batch stand, and the
// cache of keys or values with them. What several sequences of different lengths need beyond ONNX's own operators.
#include <algorithm>

#include "lathe/error.h"
#include "ops/copy/copy_bytes.h"
#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// ---- SequencePositions: last [batch] (int32), the position of each sequence's last token -> [batch, length] (int64).
// Attributes: `length` tokens are new, of `total` that the longest sequence has. Sequences begin at 0 when all are new.

struct Lengths {
  int64_t length, total;
  // Requires: is_right(last).
  int64_t begin(int64_t last) const { return length == total ? 0 : std::max<int64_t>(0, last + 1 - length); }
  bool is_right(int64_t last) const { return last >= 0 && last < total; }
};

template <class Context>
Lengths lengths_of(const Context& context) {
  const Attributes& attributes = context.node.attributes;
  return {attributes.get_int("length", 0), attributes.get_int("total", 0)};
}

std::string wrong_length(int64_t last) { return "a sequence of " + std::to_string(last + 1) + " tokens"; }

void infer_positions(InferContext& context) {
  const TensorType& last = context.input(0);
  if (last.dtype != DType::i32) context.fail("takes int32 only");
  TensorType type{DType::i64, true, {Dim(), known_dim(lengths_of(context).length)}, {}};
  if (last.has_rank && last.rank() == 1) type.dims[0] = last.dims[0];
  context.set_output(0, std::move(type));
}

void reference_positions(ReferenceContext& context) {
  const Lengths lengths = lengths_of(context);
  const std::vector<int64_t> all = integers_of_any(context.inputs[0]);
  Tensor result = make_output(context, DType::i64, {static_cast<int64_t>(all.size()), lengths.length});
  auto* to = result.mutable_data<int64_t>();
  for (const int64_t last : all) {
    if (!lengths.is_right(last)) context.fail(wrong_length(last));
    for (int64_t t = 0; t < lengths.length; ++t) *to++ = lengths.begin(last) + t;
  }
  context.outputs[0] = std::move(result);
}

bool lower_positions(LowerContext& context) {
  const Lengths lengths = lengths_of(context);
  const int64_t batch = context.output_type(0).extents()[0];
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step{.kernel = "positions", .reads = {from}, .writes = {to}};
  step.run = [=, name = context.node.name](const StepArgs& args) {
    const auto* last = args.at<const int32_t>(from);
    auto* position = args.at<int64_t>(to);
    for (int64_t b = 0; b < batch; ++b) {
      if (!lengths.is_right(last[b])) {
        throw Error(ErrorCode::invalid_argument, "node '" + name + "' (SequencePositions): " + wrong_length(last[b]));
      }
      for (int64_t t = 0; t < lengths.length; ++t) *position++ = lengths.begin(last[b]) + t;
    }
  };
  context.add(std::move(step));
  return true;
}

// ---- CacheAppend: past [batch, heads, capacity, size], now [batch, heads, length, size], positions [batch, length]
// -> [batch, heads, total, size]: of each sequence the past before its first new position, the new rows, zeros.

void infer_append(InferContext& context) {
  TensorType type = context.input(0);
  if (type.has_rank && type.rank() != 4) context.fail("the cache has rank " + std::to_string(type.rank()));
  if (type.has_rank) type.dims[2] = known_dim(context.node.attributes.get_int("total", 0));
  context.set_output(0, std::move(type));
}

// Rows of one head: `kept` of the past, `added` of the new ones, and `total` in all.
struct Rows {
  int64_t kept, added, total;
};

struct Append {
  int64_t batch, heads, capacity, length, total;
  int64_t row_bytes;

  int64_t count() const { return batch * heads; }
  Rows rows_of(int64_t begin) const {
    const int64_t kept = std::clamp<int64_t>(begin, 0, std::min(capacity, total));
    return {kept, std::min(length, total - kept), total};
  }
  void run(const char* past, const char* now, const int64_t* positions, char* to, Range part) const {
    for (int64_t i = part.begin; i < part.end; ++i) {
      const Rows rows = rows_of(length == 0 ? capacity : positions[i / heads * length]);
      char* at = to + i * total * row_bytes;
      at = piece(at, past + i * capacity * row_bytes, rows.kept);
      at = piece(at, now + i * length * row_bytes, rows.added);
      std::fill_n(at, (rows.total - rows.kept - rows.added) * row_bytes, '\0');
    }
  }

 private:
  char* piece(char* to, const char* from, int64_t rows) const {
    if (rows > 0) copy_bytes(to, from, static_cast<size_t>(rows * row_bytes));
    return to + rows * row_bytes;
  }
};

// nullopt: extents that contradict each other.
std::optional<Append> append_of(const Node& node, DType dtype, const Dims& past, const Dims& now,
                                const Dims& positions) {
  if (past.size() != 4 || now.size() != 4 || bits_of(dtype) < 8 || dtype == DType::string) return std::nullopt;
  if (now[0] != past[0] || now[1] != past[1] || now[3] != past[3] || positions != Dims{past[0], now[2]}) {
    return std::nullopt;
  }
  const int64_t total = node.attributes.get_int("total", 0);
  if (total < 0) return std::nullopt;
  return Append{past[0], past[1], past[2], now[2], total, past[3] * static_cast<int64_t>(bits_of(dtype)) / 8};
}

void reference_append(ReferenceContext& context) {
  const Tensor &past = context.inputs[0], &now = context.inputs[1], &positions = context.inputs[2];
  if (now.dtype() != past.dtype() || positions.dtype() != DType::i64) context.fail("its operands have other types");
  const auto append = append_of(context.node, past.dtype(), past.dims(), now.dims(), positions.dims());
  if (!append) context.fail("its operands do not fit each other");
  Tensor result = make_output(context, past.dtype(), {append->batch, append->heads, append->total, past.dims()[3]});
  append->run(static_cast<const char*>(past.raw()), static_cast<const char*>(now.raw()), positions.data<int64_t>(),
              static_cast<char*>(result.mutable_raw()), {0, append->count()});
  context.outputs[0] = std::move(result);
}

bool lower_append(LowerContext& context) {
  constexpr double kBytesForThreads = 128e3;
  const TensorType &past = context.input_type(0), &now = context.input_type(1);
  if (now.dtype != past.dtype || context.input_type(2).dtype != DType::i64) return false;
  const auto append =
      append_of(context.node, past.dtype, past.extents(), now.extents(), context.input_type(2).extents());
  if (!append) return false;
  if (append->count() * append->total * append->row_bytes == 0) return true;
  const BufferId old = context.buffer(context.input(0)), added = context.buffer(context.input(1)),
                 positions = context.buffer(context.input(2)), to = context.buffer(context.output(0));
  Step step{.kernel = "append rows", .reads = {old, added, positions}, .writes = {to}};
  step.bytes = 2.0 * static_cast<double>(append->count()) * static_cast<double>(append->total * append->row_bytes);
  step.threads = step.bytes > kBytesForThreads ? context.target.threads : 1;
  step.run = [=, append = *append](const StepArgs& args) {
    append.run(args.at<const char>(old), args.at<const char>(added), args.at<const int64_t>(positions),
               args.at<char>(to), split_evenly(append.count(), args.share, args.shares));
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> sequence_cache_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "SequencePositions",
                      .domain = "lathe",
                      .attributes = {{"length", Kind::integer, true}, {"total", Kind::integer, true}},
                      .infer = infer_positions,
                      .reference = reference_positions},
           .lower = lower_positions},
          {.schema = {.name = "CacheAppend",
                      .domain = "lathe",
                      .min_inputs = 3,
                      .max_inputs = 3,
                      .attributes = {{"total", Kind::integer, true}},
                      .infer = infer_append,
                      .reference = reference_append},
           .lower = lower_append}};
}

}  // namespace lathe::ops
