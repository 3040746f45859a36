#include "ops/pointwise/byte_table_step.h"

#include <algorithm>
#include <cstring>

#include "ops/value_rows.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Requires: whole rows.
void clear_padding(uint8_t* data, Range bytes, const ValueRows& of) {
  for (int64_t row = bytes.begin / of.lanes, last = bytes.end / of.lanes; row < last;) {
    const int64_t run = row / of.rows, end = std::min<int64_t>(last, (run + 1) * of.rows);
    for (; of.is_partial(run) && row < end; ++row) {
      std::memset(data + row * of.lanes + of.valid, 0, static_cast<size_t>(of.lanes - of.valid));
    }
    row = end;
  }
}

}  // namespace

void add_look_up(const LowerContext& context, const ByteTable& table, const TensorType& type, BufferId from,
                 BufferId to, const std::string& kernel) {
  constexpr int64_t kUnit = 64;  // bytes: whole rows of any layout
  const auto count = static_cast<int64_t>(type.storage_bytes());
  Step step{.kernel = kernel, .reads = {from}, .writes = {to}};
  step.bytes = 2 * static_cast<double>(count);
  step.threads = worthwhile_threads(2 * step.bytes, context.target.threads);
  step.run = [=, isa = context.target.isa, rows = ValueRows::of(type)](const StepArgs& args) {
    Range own = split_evenly(count / kUnit, args.share, args.shares);
    own = {own.begin * kUnit, args.share == args.shares - 1 ? count : own.end * kUnit};
    auto* results = args.at<uint8_t>(to);
    look_up(table, args.at<const uint8_t>(from) + own.begin, results + own.begin, own.end - own.begin, isa);
    clear_padding(results, own, rows);
  };
  context.add(std::move(step));
}

}  // namespace lathe
