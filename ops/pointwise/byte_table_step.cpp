#include "ops/pointwise/byte_table_step.h"

#include <algorithm>
#include <cstring>

#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Lanes past the channels: of the last one of `blocks` blocks of each picture, `used` of `lanes` bytes are channels.
struct Padding {
  int64_t pixels = 0, blocks = 0, lanes = 1, used = 1;

  static Padding of(const TensorType& type) {
    const int64_t lanes = type.layout.channel_block;
    if (lanes == 0 || type.dims[1].extent % lanes == 0) return {};
    const Dims stored = type.storage_dims();
    Padding padding{1, stored[1], lanes, type.dims[1].extent % lanes};
    for (size_t axis = 2; axis + 1 < stored.size(); ++axis) padding.pixels *= stored[axis];
    return padding;
  }

  // Requires: whole pixels.
  void clear(uint8_t* data, Range bytes) const {
    if (used == lanes) return;
    for (int64_t pixel = bytes.begin / lanes; pixel < bytes.end / lanes; ++pixel) {
      if (pixel / pixels % blocks != blocks - 1) {
        pixel += pixels - pixel % pixels - 1;  // past this block
        continue;
      }
      std::memset(data + pixel * lanes + used, 0, static_cast<size_t>(lanes - used));
    }
  }
};

}  // namespace

void add_look_up(const LowerContext& context, const ByteTable& table, const TensorType& type, BufferId from,
                 BufferId to, const std::string& kernel) {
  constexpr int64_t kUnit = 64;  // bytes: whole pixels of any layout
  const auto count = static_cast<int64_t>(type.storage_bytes());
  Step step{.kernel = kernel, .reads = {from}, .writes = {to}};
  step.bytes = 2 * static_cast<double>(count);
  step.threads = worthwhile_threads(2 * step.bytes, context.target.threads);
  step.run = [=, isa = context.target.isa, padding = Padding::of(type)](const StepArgs& args) {
    Range own = split_evenly(count / kUnit, args.share, args.shares);
    own = {own.begin * kUnit, args.share == args.shares - 1 ? count : own.end * kUnit};
    auto* results = args.at<uint8_t>(to);
    look_up(table, args.at<const uint8_t>(from) + own.begin, results + own.begin, own.end - own.begin, isa);
    padding.clear(results, own);
  };
  context.add(std::move(step));
}

}  // namespace lathe
