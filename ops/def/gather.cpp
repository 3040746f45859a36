// Gather: runs along one axis.
#include <algorithm>

#include "ops/copy/copy_bytes.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/copy/gather_indices.h"
#include "ops/copy/index_check.h"
#include "ops/copy/run_copies.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/cpu.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

void infer_gather(InferContext& context) {
  check_index_type(context);
  const TensorType &data = context.input(0), &indices = context.input(1);
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  const auto axis =
      static_cast<ptrdiff_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  if (!indices.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  TensorType result = ranked(data.dtype, 0);
  result.dims.assign(data.dims.begin(), data.dims.begin() + axis);
  result.dims.insert(result.dims.end(), indices.dims.begin(), indices.dims.end());
  result.dims.insert(result.dims.end(), data.dims.begin() + axis + 1, data.dims.end());
  context.set_output(0, std::move(result));
}

void reference_gather(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const Tensor& indices = context.inputs[1];
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
  const AxisSplit split = split_at(data.dims(), axis);
  const std::vector<int64_t> picks = indices_within(context, indices, split.extent);
  Dims dims(data.dims().begin(), data.dims().begin() + axis);
  dims.insert(dims.end(), indices.dims().begin(), indices.dims().end());
  dims.insert(dims.end(), data.dims().begin() + axis + 1, data.dims().end());
  Tensor result = make_output(context, data.dtype(), dims);
  const auto count = static_cast<int64_t>(picks.size());
  for (int64_t i = 0; i < count; ++i) {
    const MoveAxis axes[] = {{split.outer, split.extent * split.inner, count * split.inner}, {split.inner, 1, 1}};
    move_elements(data, picks[static_cast<size_t>(i)] * split.inner, result, i * split.inner, axes);
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// Everything that the run-time lookup needs, by value.
struct Lookup {
  AxisSplit split;
  int64_t count;
  size_t element_bytes;
  bool is_wide;
  BufferId data, indices, out;

  int64_t pick(const void* at, int64_t i) const {
    const int64_t index = is_wide ? static_cast<const int64_t*>(at)[i] : static_cast<const int32_t*>(at)[i];
    return index < 0 ? index + split.extent : index;
  }
  void copy(const StepArgs& args) const {
    const Range rows = split_evenly(split.outer * count, args.share, args.shares);
    if (rows.begin == rows.end) return;
    switch (run_bytes()) {
      case 1:
        return take_elements<uint8_t>(args, rows);
      case 2:
        return take_elements<uint16_t>(args, rows);
      case 4:
        return take_elements<uint32_t>(args, rows);
      case 8:
        return take_elements<uint64_t>(args, rows);
      default:
        return copy_rows(args, rows);
    }
  }

 private:
  int64_t run_bytes() const { return split.inner * static_cast<int64_t>(element_bytes); }

  // Rows of one element: calls to copy them would take longer.
  template <class T>
  void take_elements(const StepArgs& args, Range rows) const {
    const void* places = args.at<const void>(indices);
    for (int64_t row = rows.begin; row < rows.end;) {
      const int64_t outer = row / count, end = std::min<int64_t>(rows.end, (outer + 1) * count);
      const T* from = args.at<const T>(data) + outer * split.extent;
      T* to = args.at<T>(out);
      for (; row < end; ++row) to[row] = from[pick(places, row - outer * count)];
    }
  }

  // Where rows come from, one after the other: dividing each row's number takes as long as copying some lines.
  class SourceRows {
   public:
    SourceRows(const Lookup& lookup, const char* data, const void* places, long row)
        : lookup_(lookup),
          table_bytes_(lookup.split.extent * lookup.run_bytes()),
          table_(data + row / lookup.count * table_bytes_),
          places_(places),
          at_(row % lookup.count) {}
    const char* next() {
      const char* row = table_ + lookup_.pick(places_, at_) * lookup_.run_bytes();
      if (++at_ == lookup_.count) {
        at_ = 0;
        table_ += table_bytes_;
      }
      return row;
    }

   private:
    const Lookup& lookup_;
    int64_t table_bytes_;
    const char* table_;
    const void* places_;
    int64_t at_;
  };

  void copy_rows(const StepArgs& args, Range rows) const {
    const int64_t run = run_bytes();
    const auto* from = args.at<const char>(data);
    auto* to = args.at<char>(out);
    const void* places = args.at<const void>(indices);
    // Rows of a table lie anywhere in memory: some are on their way to L2, which waits for more lines at a time than L1
    // does, while one is copied. No further ahead than pages are found meanwhile.
    constexpr int64_t kLine = 64, kShortest = 2 * kLine, kMost = 4096, kBytesAhead = 6144;
    const bool is_far = split.extent * run > static_cast<int64_t>(cpu_facts().l2_bytes) && run >= kShortest;
    const int64_t rows_ahead = is_far ? 1 + std::clamp<int64_t>(kBytesAhead / run, 2, 16) : 0;
    SourceRows copied(*this, from, places, rows.begin), fetched = copied;
    int64_t next = rows.begin;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (; next < std::min(rows.end, row + rows_ahead); ++next) {
        const char* first = fetched.next();
        for (int64_t at = 0; at < std::min(run, kMost); at += kLine) __builtin_prefetch(first + at, 0, 2);
      }
      copy_bytes(to + row * run, copied.next(), static_cast<size_t>(run));
    }
  }
};

// Checks the indices on the calling thread, where an error can be reported; then copies on all.
void add_lookup(LowerContext& context, const Lookup& lookup, const IndexTuples& indices) {
  add_index_check(context, indices);
  Step copy{.kernel = "gather rows", .reads = {lookup.data, lookup.indices}, .writes = {lookup.out}};
  copy.bytes = 2.0 * static_cast<double>(lookup.split.outer * lookup.count * lookup.split.inner) *
               static_cast<double>(lookup.element_bytes);
  copy.threads = copy.bytes > 512e3 ? context.target.threads : 1;
  copy.run = [lookup](const StepArgs& args) { lookup.copy(args); };
  context.add(std::move(copy));
}

// Indices that are constants: places next to each other are copied together, and nothing is checked in a run.
bool add_known_runs(LowerContext& context, const Lookup& lookup, const IndexTuples& indices) {
  if (!are_known_within(indices)) return false;
  ElementRuns runs;
  const AxisSplit& split = lookup.split;
  for (int64_t i = 0; i < lookup.count; ++i)
    runs.add(lookup.pick(indices.constant.raw(), i) * split.inner, i * split.inner, split.inner);
  if (!runs.are_long()) return false;
  const ElementRuns::Repeats outer{split.outer, split.extent * split.inner, lookup.count * split.inner};
  context.add(runs.copy_step(lookup.data, lookup.out, static_cast<int64_t>(lookup.element_bytes), outer,
                             context.target.threads));
  return true;
}

bool lower_gather(LowerContext& context) {
  const TensorType& data = context.input_type(0);
  const int bits = bits_of(data.dtype);
  if (bits < 8 || data.dtype == DType::string) return false;
  const Tensor indices = context.constant(1);
  const Dims index_dims = context.input_type(1).extents();
  const bool is_wide = context.input_type(1).dtype == DType::i64;
  int64_t axis = context.node.attributes.get_int("axis", 0);
  if (axis < 0) axis += data.rank();
  const AxisSplit split = split_at(data.extents(), axis);
  int64_t count = 1;
  for (const int64_t extent : index_dims) count *= extent;
  const auto tuples = index_tuples(context, 1, {split.extent});
  if (!tuples) return false;
  if (!are_known_within(*tuples) || count > 16) {
    const Lookup lookup{split,
                        count,
                        static_cast<size_t>(bits) / 8,
                        is_wide,
                        context.buffer(context.input(0)),
                        context.buffer(context.input(1)),
                        context.buffer(context.output(0))};
    if (!add_known_runs(context, lookup, *tuples)) add_lookup(context, lookup, *tuples);
    return true;
  }
  if (count * split.outer * split.inner == 0) return true;
  std::vector<CopyJob> jobs;
  for (int64_t i = 0; i < count; ++i) {
    int64_t pick = is_wide ? indices.data<int64_t>()[i] : indices.data<int32_t>()[i];
    if (pick < 0) pick += split.extent;
    const auto offset_bytes = static_cast<size_t>(pick * split.inner) * static_cast<size_t>(bits) / 8;
    if (count == 1 && split.outer == 1 && context.view_of(context.output(0), context.input(0), offset_bytes))
      return true;
    jobs.push_back({context.buffer(context.input(0)),
                    context.buffer(context.output(0)),
                    pick * split.inner,
                    i * split.inner,
                    {{split.outer, split.extent * split.inner, count * split.inner}, {split.inner, 1, 1}}});
  }
  return add_copy_step(context, data.dtype, std::move(jobs));
}

}  // namespace

std::vector<OpDef> gather_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "Gather",
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"axis", Kind::integer}},
                      .infer = infer_gather,
                      .reference = reference_gather},
           .lower = lower_gather}};
}

}  // namespace lathe::ops
