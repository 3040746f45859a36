#include "jit/kernels/copy/channel_gather.h"

#include <cstddef>

#include "jit/kernels/copy/gather_emitter.h"

namespace lathe {
namespace {

// AVX2: a permutation for each group, a blend for each source.
class MaskedGatherEmitter final : public GatherEmitter {
 public:
  explicit MaskedGatherEmitter(const ChannelGatherPlan& plan)
      : GatherEmitter(plan, 2), masks_(static_cast<size_t>(plan.sources)) {}

 private:
  void claim_vectors() override {
    const auto groups = static_cast<int>(plan_.groups.size());
    index_ = claim_vecs("index", groups);
    results_ = claim_vecs("lanes of a group", groups - 1);  // the first one's result needs no blend
    for_blended([&](size_t source) { masks_[source] = claim_vec("lanes of a source"); });
    if (groups > 1) moved_ = claim_vec("moved lanes");
    if (plan_.is_partial) written_ = claim_vec("written lanes");
  }

  void load_table() override {
    constexpr size_t kVector = sizeof(MaskedGatherTable::Lanes);
    for (size_t i = 0; i < index_.size(); ++i) {
      load(index_[i], table_ + offsetof(MaskedGatherTable, index) + i * kVector);
      if (i > 0) load(results_[i - 1], table_ + offsetof(MaskedGatherTable, results) + i * kVector);
    }
    for_blended(
        [&](size_t source) { load(masks_[source], table_ + offsetof(MaskedGatherTable, sources) + source * kVector); });
    if (plan_.is_partial) load(written_, table_ + offsetof(MaskedGatherTable, written));
  }

  void gather(int pixels) override {
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const int bytes = pixel * vec_bytes();
      for (size_t i = 0; i < index_.size(); ++i) {
        take(plan_.groups[i], index_[i], i == 0 ? result_ : moved_, bytes);
        if (i > 0) vblendvps(result_, result_, moved_, results_[i - 1]);
      }
      if (plan_.is_partial) {
        vmaskmovps(ptr[to_ + offset_ + bytes], written_, result_);
      } else {
        store(to_ + offset_ + bytes, result_);
      }
    }
    add(offset_, pixels * vec_bytes());
  }

  void take(const std::vector<int>& group, const Vec& index, const Vec& to, int bytes) {
    const Xbyak::Ymm into(to.getIdx()), order(index.getIdx());
    const auto source = [&](size_t i) { return ptr[from_[static_cast<size_t>(group[i])] + offset_ + bytes]; };
    if (group.size() == 1) return vpermps(into, order, source(0));
    vmovups(into, source(0));
    for (size_t i = 1; i < group.size(); ++i) vblendvps(into, into, source(i), masks_[static_cast<size_t>(group[i])]);
    vpermps(into, order, into);
  }

  std::vector<Vec> results_, masks_;  // by group; by source
  Vec written_;
};

// Bytes: the lanes of several pixels at once.
class ByteGatherEmitter final : public GatherEmitter {
 public:
  explicit ByteGatherEmitter(const ChannelGatherPlan& plan) : GatherEmitter(plan, 4) {}

 private:
  void claim_vectors() override {
    index_ = claim_vecs("index", plan_.sources);
    moved_ = claim_vec("moved lanes");
    if (plan_.is_partial) kept_ = claim_vec("lanes that stay");
  }

  void load_table() override {
    for (size_t i = 0; i < index_.size(); ++i) {
      load_repeated(index_[i], offsetof(ByteGatherTable, index) + i * sizeof(std::array<uint8_t, 16>));
    }
    if (plan_.is_partial) load_repeated(kept_, offsetof(ByteGatherTable, kept));
  }

  void load_repeated(const Vec& vec, size_t at) {
    if (has_masks()) {
      vbroadcasti32x4(Xbyak::Zmm(vec.getIdx()), ptr[table_ + at]);
    } else {
      vbroadcasti128(Xbyak::Ymm(vec.getIdx()), ptr[table_ + at]);
    }
  }

  // As wide as so many pixels are; one pixel of 8 lanes: 16 bytes, of which half counts.
  Vec width(const Vec& vec, int pixels) const {
    if (pixels == 1) return Xbyak::Xmm(vec.getIdx());
    return has_masks() ? static_cast<Vec>(Xbyak::Zmm(vec.getIdx())) : static_cast<Vec>(Xbyak::Ymm(vec.getIdx()));
  }

  void gather(int pixels) override {
    const Vec result = width(result_, pixels), moved = width(moved_, pixels);
    for (size_t i = 0; i < from_.size(); ++i) {
      const Vec& into = i == 0 ? result : moved;
      read(into, from_[i] + offset_, pixels);
      vpshufb(into, into, width(index_[i], pixels));
      if (i > 0) merge(result, moved);
    }
    if (plan_.is_partial) {
      read(moved, to_ + offset_, pixels);
      has_masks() ? vpandd(moved, moved, width(kept_, pixels)) : vpand(moved, moved, width(kept_, pixels));
      merge(result, moved);
    }
    write(to_ + offset_, result, pixels);
    add(offset_, pixels * lanes());
  }

  void merge(const Vec& into, const Vec& from) { has_masks() ? vpord(into, into, from) : vpor(into, into, from); }

  void read(const Vec& into, const Xbyak::RegExp& from, int pixels) {
    if (pixels > 1 || has_masks()) {
      vmovups(into, ptr[from]);
    } else {
      vmovq(into, ptr[from]);
    }
  }

  void write(const Xbyak::RegExp& to, const Vec& from, int pixels) {
    if (pixels > 1 || has_masks()) {
      vmovups(ptr[to], from);
    } else {
      vmovq(ptr[to], from);
    }
  }

  Vec kept_;
};

// each(group, source, lane of the result, lane of the source).
template <class Each>
void for_lanes(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups, Each each) {
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int number : groups[group]) {
      const auto source = static_cast<size_t>(number);
      for (size_t lane = 0; lane < table.written.size(); ++lane)
        if (table.lanes[source][lane] != 0) each(group, source, lane, static_cast<size_t>(table.index[source][lane]));
    }
  }
}

}  // namespace

void ChannelGatherTable::set(size_t source, int to, int from) {
  const auto lane = static_cast<size_t>(to);
  index[source][lane] = from;
  lanes[source][lane] = -1;
  written[lane] = -1;
}

uint32_t ChannelGatherTable::lanes_read(size_t source) const {
  uint32_t read = 0;
  for (size_t lane = 0; lane < written.size(); ++lane) {
    if (lanes[source][lane] != 0) read |= 1U << index[source][lane];
  }
  return read;
}

std::vector<std::vector<int>> groups_of(const ChannelGatherTable& table, int sources) {
  std::vector<std::vector<int>> groups;
  std::vector<uint32_t> taken;  // lanes, by group
  for (int source = 0; source < sources; ++source) {
    const uint32_t lanes = table.lanes_read(static_cast<size_t>(source));
    size_t group = 0;
    while (group < groups.size() && (taken[group] & lanes) != 0) ++group;
    if (group == groups.size()) {
      groups.emplace_back();
      taken.push_back(0);
    }
    groups[group].push_back(source);
    taken[group] |= lanes;
  }
  return groups;
}

MaskedGatherTable::MaskedGatherTable(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups) {
  for_lanes(table, groups, [&](size_t group, size_t source, size_t to, size_t from) {
    index[group][to] = static_cast<int32_t>(from);
    results[group][to] = written[to] = -1;
    sources[source][from] = -1;
  });
}

BlendedGatherTable::BlendedGatherTable(const ChannelGatherTable& table, const std::vector<std::vector<int>>& groups) {
  for_lanes(table, groups, [&](size_t group, size_t source, size_t to, size_t from) {
    // The lanes of a pair's second group follow those of its first.
    index[group / 2][to] = static_cast<int32_t>(from + (group % 2 == 0 ? 0 : kLanes));
    results[group / 2] = static_cast<uint16_t>(results[group / 2] | 1U << to);
    sources[source] = static_cast<uint16_t>(sources[source] | 1U << from);
    written = static_cast<uint16_t>(written | 1U << to);
  });
}

ByteGatherTable::ByteGatherTable(const ChannelGatherTable& table, int lanes) {
  for (size_t byte = 0; byte < kept.size(); ++byte) {
    const size_t pixel = byte / static_cast<size_t>(lanes), lane = byte % static_cast<size_t>(lanes);
    for (size_t i = 0; i < index.size(); ++i) {
      const size_t from = pixel * static_cast<size_t>(lanes) + static_cast<size_t>(table.index[i][lane]);
      index[i][byte] = table.lanes[i][lane] != 0 ? static_cast<uint8_t>(from) : kNone;
    }
    kept[byte] = table.written[lane] != 0 ? 0 : 255;
  }
}

GatherTableForm form_of(const ChannelGatherTable& table, const ChannelGatherPlan& plan) {
  if (plan.has_bytes) return ByteGatherTable(table, vector_lanes(plan.isa));
  if (has_avx512(plan.isa)) return BlendedGatherTable(table, plan.groups);
  return MaskedGatherTable(table, plan.groups);
}

std::string to_string(const ChannelGatherPlan& plan) {
  std::string text = plan.has_bytes ? "gather channels of bytes from " : "gather channels from ";
  text += std::to_string(plan.sources) + (plan.is_partial ? " blocks, in part" : " blocks");
  for (const std::vector<int>& group : plan.groups) {
    text += " +";
    for (const int source : group) text += std::to_string(source);
  }
  return text;
}

Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<ChannelGatherFn>(cached_code(key, [&] {
    if (plan.has_bytes) return ByteGatherEmitter(plan).emit(key);
    if (plan.groups.empty()) throw JitError("no plan: " + key);
    return has_avx512(plan.isa) ? emit_blended_gather(plan, key) : MaskedGatherEmitter(plan).emit(key);
  }));
}

}  // namespace lathe
