#include "ops/copy/copy_step.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/copy/byte_transpose.h"
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

// Channels [first, first + count) of one block; the other side of plain planes of `spatial` elements.
struct BlockReorder {
  int64_t batch, channels, blocks, spatial, block;
  size_t element_bytes;
  bool to_blocked;
  Kernel<TransposeFn> whole, tail;  // null: element by element

  void run(const char* from, char* to, int thread, int threads) const {
    // Blocks are split over threads, or pixels where there are too few blocks.
    if (batch * blocks >= threads || spatial < 64 * threads) {
      const Range range = split_evenly(batch * blocks, thread, threads);
      for (long i = range.begin; i < range.end; ++i) run_block(i, {0, spatial}, from, to);
      return;
    }
    const Range tiles = split_evenly((spatial + 15) / 16, thread, threads);
    for (long i = 0; i < batch * blocks; ++i) {
      run_block(i, {tiles.begin * 16, std::min<long>(tiles.end * 16, spatial)}, from, to);
    }
  }

  // Sixteen pixels of the channels of one block.
  void block_bytes(const char* planes, int64_t count, char* pixels) const {
    ByteTile tile{};
    for (int c = 0; c < count; ++c) tile.load_row(c, planes + c * spatial);
    tile.transpose();
    for (int s = 0; s < 16; ++s) tile.store_row(s, pixels + 16 * s);
  }
  void unblock_bytes(const char* pixels, int64_t count, char* planes) const {
    ByteTile tile;
    for (int s = 0; s < 16; ++s) tile.load_row(s, pixels + 16 * s);
    tile.transpose();
    for (int c = 0; c < count; ++c) tile.store_row(c, planes + c * spatial);
  }

  void run_block(int64_t index, Range pixels, const char* from, char* to) const {
    const auto size = static_cast<int64_t>(element_bytes);
    const int64_t first = index % blocks * block, count = std::min(block, channels - first);
    const int64_t plain = ((index / blocks * channels + first) * spatial + pixels.begin) * size;
    const int64_t blocked = (index * spatial + pixels.begin) * block * size;
    const char* source = from + (to_blocked ? plain : blocked);
    char* target = to + (to_blocked ? blocked : plain);
    const int64_t width = pixels.end - pixels.begin;
    const Kernel<TransposeFn>& kernel = count == block ? whole : tail;
    if (kernel && (width == spatial || width >= 16)) {
      if (to_blocked) return kernel(source, target, spatial * size, block * size, count, width);
      return kernel(source, target, block * size, spatial * size, width, count);
    }
    int64_t s = 0;
    if (element_bytes == 1 && block == 16) {
      for (; s + 16 <= width; s += 16) {
        to_blocked ? block_bytes(source + s, count, target + s * 16)
                   : unblock_bytes(source + s * 16, count, target + s);
      }
    }
    for (; s < width; ++s) {
      for (int64_t c = 0; c < (to_blocked ? block : count); ++c) {
        const int64_t in_plain = (c * spatial + s) * size, in_block = (s * block + c) * size;
        if (c >= count) {
          std::memset(target + in_block, 0, element_bytes);
        } else if (to_blocked) {
          std::memcpy(target + in_block, source + in_plain, element_bytes);
        } else {
          std::memcpy(target + in_plain, source + in_block, element_bytes);
        }
      }
    }
  }
};

Isa isa_of_block(int block) { return block == 16 ? Isa::avx512 : Isa::avx2; }

void choose_kernels(BlockReorder& reorder, Isa isa) {
  const auto block = static_cast<int>(reorder.block);
  const bool fits = block == 8 || (block == 16 && has_avx512(isa));
  if (reorder.element_bytes != 4 || !fits) return;
  const Isa kernel_isa = isa_of_block(block);
  const auto kernel = [&](int64_t count) {
    return transpose_kernel(reorder.to_blocked ? plan_transpose(kernel_isa, count, reorder.spatial, true)
                                               : plan_transpose(kernel_isa, reorder.spatial, count));
  };
  reorder.whole = kernel(block);
  if (const int64_t rest = reorder.channels % block; rest != 0) reorder.tail = kernel(rest);
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
  const Dims dims = from.extents();
  BlockReorder reorder{dims[0], dims[1], 0, 1, 0, whole_element_bytes(from.dtype), to.layout.channel_block != 0,
                       {},      {}};
  reorder.block = reorder.to_blocked ? to.layout.channel_block : from.layout.channel_block;
  reorder.blocks = (dims[1] + reorder.block - 1) / reorder.block;
  for (size_t i = 2; i < dims.size(); ++i) reorder.spatial *= dims[i];
  if (reorder.batch * reorder.blocks * reorder.spatial == 0) return true;
  choose_kernels(reorder, context.target.isa);
  const BufferId source = context.buffer(context.input(0)), target = context.buffer(context.output(0));
  Step step{
      .kernel = (reorder.to_blocked ? "block channels by " : "unblock channels by ") + std::to_string(reorder.block),
      .reads = {source},
      .writes = {target}};
  step.bytes = static_cast<double>(from.storage_bytes() + to.storage_bytes());
  step.threads = step.bytes > kBytesForThreads ? context.target.threads : 1;
  step.run = [reorder, source, target](const StepArgs& args) {
    reorder.run(args.at<const char>(source), args.at<char>(target), args.share, args.shares);
  };
  context.add(std::move(step));
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
