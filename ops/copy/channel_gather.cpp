#include "ops/copy/channel_gather.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "jit/kernels/copy/channel_gather.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// One call of a kernel for each image: some lanes of one block of the result.
struct GatherJob {
  struct Source {
    size_t input;   // of the step
    int64_t block;  // of channels
  };
  int64_t block;
  std::vector<Source> sources;
  GatherTableForm table;
  Kernel<ChannelGatherFn> kernel;
};

struct ChannelGather {
  std::vector<GatherJob> jobs;
  std::vector<BufferId> inputs;
  std::vector<int64_t> input_blocks;  // of channels
  BufferId output = BufferId::none;
  int64_t images = 0, blocks = 0, pixels = 0, lanes = 0;
  int64_t element_bytes = 4;
  int64_t strip = 1;  // pixels

  int64_t pixel_bytes() const { return lanes * element_bytes; }

  // Strip by strip of pixels, all blocks of each: what several jobs read comes from far away once.
  void operator()(const StepArgs& args) const {
    const int64_t longest = std::min(strip, divide_up(images * pixels, args.shares)),
                  strips = divide_up(pixels, longest);
    const Range mine = split_evenly(images * strips, args.share, args.shares);
    for (int64_t item = mine.begin; item < mine.end; ++item) {
      const int64_t image = item / strips, first = item % strips * longest;
      for (const GatherJob& job : jobs) {
        ChannelGatherArgs call{address_of(job.table), {}, nullptr, std::min(longest, pixels - first)};
        for (size_t i = 0; i < job.sources.size(); ++i) {
          const auto [input, block] = job.sources[i];
          const int64_t pixel = (image * input_blocks[input] + block) * pixels + first;
          call.sources[i] = args.at<const char>(inputs[input]) + pixel * pixel_bytes();
        }
        call.to = args.at<char>(output) + ((image * blocks + job.block) * pixels + first) * pixel_bytes();
        job.kernel.entry()(&call);
      }
    }
  }
};

// Where each block is read by several jobs, as many pixels as half of L1 holds, and no fewer than pay for a call of
// each kernel. Else all: the fewer streams from memory at a time, the better.
int64_t strip_of(const ChannelGather& gather) {
  constexpr int64_t kStripBytes = 16 << 10, kShortest = 64;
  const auto read = std::accumulate(gather.input_blocks.begin(), gather.input_blocks.end(), int64_t{0});
  int64_t sources = 0;
  for (const GatherJob& job : gather.jobs) sources += static_cast<int64_t>(job.sources.size());
  if (sources <= 2 * read) return gather.pixels;
  return std::max(kShortest, kStripBytes / (read * gather.pixel_bytes()));
}

// The lanes of one block of the result, by the block that they come from.
struct Lane {
  int to, from;
};
using LanesBySource = std::map<std::pair<size_t, int64_t>, std::vector<Lane>>;

void add_jobs(ChannelGather& gather, int64_t block, const LanesBySource& lanes, bool is_whole, Isa isa) {
  auto source = lanes.begin();
  while (source != lanes.end()) {
    std::vector<GatherJob::Source> sources;
    ChannelGatherTable table;
    for (; source != lanes.end() && sources.size() < kMostGatherSources; ++source) {
      const size_t slot = sources.size();
      sources.push_back({source->first.first, source->first.second});
      for (const Lane& lane : source->second) table.set(slot, lane.to, lane.from);
    }
    const bool has_bytes = gather.element_bytes == 1;
    const bool is_partial = !is_whole || lanes.size() > static_cast<size_t>(kMostGatherSources);
    ChannelGatherPlan plan{isa, static_cast<int>(sources.size()), is_partial, has_bytes};
    if (!has_bytes) plan.groups = groups_of(table, plan.sources);
    gather.jobs.push_back({block, std::move(sources), form_of(table, plan), channel_gather_kernel(plan)});
  }
}

}  // namespace

bool add_channel_gather_step(const LowerContext& context, ValueId result, const std::vector<ChannelOrigin>& origins) {
  const TensorType& type = context.type(result);
  const Isa isa = has_avx512(context.target.isa) ? Isa::avx512 : Isa::avx2;
  const int block = type.layout.channel_block;
  const int bits = bits_of(type.dtype);
  if ((bits != 32 && bits != 8) || block != vector_lanes(isa)) return false;
  ChannelGather gather;
  gather.element_bytes = bits / 8;
  const Dims dims = type.storage_dims();
  gather.images = dims[0];
  gather.blocks = dims[1];
  gather.lanes = block;
  gather.pixels = checked_elements(Dims(dims.begin() + 2, dims.end() - 1));
  gather.output = context.buffer(result);

  std::vector<ValueId> values;
  for (int64_t first = 0; first < static_cast<int64_t>(origins.size()); first += block) {
    LanesBySource lanes;
    bool is_whole = true;
    for (int lane = 0; lane < block && first + lane < static_cast<int64_t>(origins.size()); ++lane) {
      const ChannelOrigin& origin = origins[static_cast<size_t>(first + lane)];
      is_whole = is_whole && origin.value != ValueId::none;
      if (origin.value == ValueId::none) continue;
      if (context.type(origin.value).layout != type.layout) return false;
      auto known = std::find(values.begin(), values.end(), origin.value);
      if (known == values.end()) known = values.insert(known, origin.value);
      const auto input = static_cast<size_t>(known - values.begin());
      lanes[{input, origin.channel / block}].push_back({lane, static_cast<int>(origin.channel % block)});
    }
    add_jobs(gather, first / block, lanes, is_whole, isa);
  }
  if (gather.images * gather.pixels == 0 || gather.jobs.empty()) return true;

  Step step;
  for (const ValueId value : values) {
    gather.inputs.push_back(context.buffer(value));
    gather.input_blocks.push_back(context.type(value).storage_dims()[1]);
    step.reads.push_back(context.buffer(value));
  }
  gather.strip = strip_of(gather);
  step.kernel = "gather channels";
  step.writes = {gather.output};
  // Blocks are read and written whole, those of a few channels too.
  int64_t blocks = std::accumulate(gather.input_blocks.begin(), gather.input_blocks.end(), int64_t{0}), last = -1;
  for (const GatherJob& job : gather.jobs) blocks += std::exchange(last, job.block) != job.block;
  step.bytes = static_cast<double>(blocks * gather.images * gather.pixels * gather.pixel_bytes());
  step.threads = worthwhile_movers(step.bytes / 2, context.target.threads);  // shorter strips: more calls
  step.run = std::move(gather);
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
