#include "ops/copy/copy_step.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/copy/block_reorder.h"
#include "ops/copy/copy_nest.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Below this much traffic a second thread costs more than it saves: some microseconds at L2 speed.
constexpr double kBytesForThreads = 128e3;

alignas(16) constexpr char kZero[16] = {};  // an element of any size

struct BoundCopy {
  std::vector<CopyNest::Part> parts;  // by thread
  BufferId from, to;
};

template <class Container>
void add_once(Container& ids, BufferId id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

}  // namespace

bool add_copy_step(LowerContext& context, DType dtype, std::vector<CopyJob> jobs) {
  if (dtype == DType::string || bits_of(dtype) < 8) return false;
  const size_t size = whole_element_bytes(dtype);
  auto copies = std::make_shared<std::vector<BoundCopy>>();
  Step step;
  std::vector<CopyNest> nests;
  for (const CopyJob& job : jobs) {
    nests.emplace_back(job.axes, size, context.target.isa);
    if (job.from != BufferId::none) add_once(step.reads, job.from);
    add_once(step.writes, job.to);
    step.bytes += nests.back().bytes();
  }
  if (step.bytes == 0) return true;
  step.kernel = nests.front().to_string();
  step.threads = step.bytes > kBytesForThreads ? context.target.threads : 1;
  for (size_t i = 0; i < jobs.size(); ++i) {
    BoundCopy copy{{}, jobs[i].from, jobs[i].to};
    for (int thread = 0; thread < step.threads; ++thread) {
      copy.parts.push_back(nests[i].part(thread, step.threads));
      copy.parts.back().from_bytes += jobs[i].from_offset * static_cast<int64_t>(size);
      copy.parts.back().to_bytes += jobs[i].to_offset * static_cast<int64_t>(size);
    }
    copies->push_back(std::move(copy));
  }
  step.run = [copies](const StepArgs& args) {
    for (const BoundCopy& copy : *copies) {
      const CopyNest::Part& part = copy.parts[static_cast<size_t>(args.share)];
      const char* from = copy.from == BufferId::none ? kZero : args.at<const char>(copy.from);
      part.nest.run(from + part.from_bytes, args.at<char>(copy.to) + part.to_bytes);
    }
  };
  context.add(std::move(step));
  return true;
}

bool add_fill_step(LowerContext& context, DType dtype, BufferId to, int64_t count, const void* value) {
  if (dtype == DType::string || bits_of(dtype) < 8) return false;
  const size_t size = whole_element_bytes(dtype);
  if (count == 0) return true;
  // The element, repeated to one line: 64 is a multiple of every element size.
  auto line = std::make_shared<std::vector<char>>(64, 0);
  if (value != nullptr) {
    for (size_t i = 0; i < 64; i += size) std::memcpy(line->data() + i, value, size);
  }
  const size_t total = static_cast<size_t>(count) * size;
  Step step{.kernel = "fill", .writes = {to}};
  step.bytes = static_cast<double>(total);
  step.threads = step.bytes > 2 * kBytesForThreads ? context.target.threads : 1;
  const bool is_uniform = std::all_of(line->begin(), line->end(), [&](char byte) { return byte == line->front(); });
  step.run = [to, total, line, is_uniform](const StepArgs& args) {
    const Range lines = split_evenly(static_cast<long>((total + 63) / 64), args.share, args.shares);
    const auto begin = static_cast<size_t>(lines.begin) * 64,
               end = std::min(static_cast<size_t>(lines.end) * 64, total);
    char* out = args.at<char>(to);
    if (is_uniform) {
      std::memset(out + begin, line->front(), end - begin);
      return;
    }
    const char* pattern = line->data();
    size_t at = begin;
    for (; at + 64 <= end; at += 64) std::memcpy(out + at, pattern, 64);
    std::memcpy(out + at, pattern, end - at);
  };
  context.add(std::move(step));
  return true;
}

bool add_reorder_step(LowerContext& context, const TensorType& from, const TensorType& to) {
  if (from.dtype == DType::string || bits_of(from.dtype) < 8 || from.rank() < 2) return false;
  const bool to_blocked = to.layout.channel_block != 0;
  const BlockReorder reorder(context.target.isa, from.dtype, from.extents(),
                             to_blocked ? to.layout.channel_block : from.layout.channel_block, to_blocked);
  if (reorder.is_empty()) return true;
  const int threads = reorder.bytes() > kBytesForThreads ? context.target.threads : 1;
  context.add(reorder.step(context.buffer(context.input(0)), context.buffer(context.output(0)), threads));
  return true;
}

bool lower_as_same_bytes(LowerContext& context, ValueId output, ValueId input) {
  const TensorType& type = context.type(output);
  if (type.dtype == DType::string) return false;
  if (context.alias(output, input)) return true;
  const auto bytes = static_cast<int64_t>(type.storage_bytes());
  if (bytes == 0) return true;
  return add_copy_step(context, DType::u8, {{context.buffer(input), context.buffer(output), 0, 0, {{bytes, 1, 1}}}});
}

bool lower_as_same_bytes(LowerContext& context) {
  return lower_as_same_bytes(context, context.output(0), context.input(0));
}

}  // namespace lathe
