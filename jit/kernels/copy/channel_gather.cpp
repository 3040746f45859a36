#include "jit/kernels/copy/channel_gather.h"

#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

// What both forms share: registers for the operands, and the loop over pixels.
class GatherEmitter : public Emitter {
 public:
  std::shared_ptr<const CodePages> emit(const std::string& name) {
    claim_vectors();
    begin();
    mov(table_, ptr[args_ + offsetof(ChannelGatherArgs, table)]);
    mov(to_, ptr[args_ + offsetof(ChannelGatherArgs, to)]);
    mov(pixels_, ptr[args_ + offsetof(ChannelGatherArgs, pixels)]);
    for (size_t i = 0; i < from_.size(); ++i) {
      mov(from_[i], ptr[args_ + offsetof(ChannelGatherArgs, sources) + i * sizeof(void*)]);
    }
    load_table();
    xor_(offset_.cvt32(), offset_.cvt32());
    while_at_least(pixels_, together_, [&] { gather(together_); });
    while_at_least(pixels_, 1, [&] { gather(1); });
    end();
    return finish(name);
  }

 protected:
  // `together`: pixels at a time.
  GatherEmitter(const ChannelGatherPlan& plan, int together) : Emitter(plan.isa), plan_(plan), together_(together) {
    if (plan.sources < 1 || plan.sources > kMostGatherSources) throw JitError("no plan: " + to_string(plan));
    for (int i = 0; i < plan_.sources; ++i) {
      from_.push_back(claim_gpr("source"));
      index_.push_back(claim_vec("index"));
    }
    result_ = claim_vec("result");
  }

  virtual void claim_vectors() = 0;
  virtual void load_table() = 0;
  virtual void gather(int pixels) = 0;  // moves offset_ on

  const ChannelGatherPlan plan_;
  const int together_;
  const Gpr args_ = argument(0), table_ = claim_gpr("table"), to_ = claim_gpr("to");
  const Gpr pixels_ = claim_gpr("pixels left"), offset_ = claim_gpr("offset");
  std::vector<Gpr> from_;
  std::vector<Vec> index_;
  Vec result_, moved_;
};

class ChannelGatherEmitter final : public GatherEmitter {
 public:
  explicit ChannelGatherEmitter(const ChannelGatherPlan& plan) : GatherEmitter(plan, 2) {}

 private:
  void claim_vectors() override {
    // The first source's result needs no blend; opmasks are AVX-512's.
    if (!has_masks()) lanes_ = claim_vecs("lanes of a source", plan_.sources - 1);
    if (!has_masks()) moved_ = claim_vec("moved lanes");
    if (!has_masks() && plan_.is_partial) written_ = claim_vec("written lanes");
  }

  void load_table() override {
    for (int i = 0; i < plan_.sources; ++i) {
      const auto slot = static_cast<size_t>(i);
      load(index_[slot], table_ + offsetof(ChannelGatherTable, index) + slot * sizeof(std::array<int32_t, 16>));
      load_lanes(i, offsetof(ChannelGatherTable, lanes) + slot * sizeof(std::array<int32_t, 16>));
    }
    if (plan_.is_partial) load_written();
  }

  // Opmask 1 + i, or a vector.
  void load_lanes(int source, size_t at) {
    if (has_masks()) {
      load(result_, table_ + at);
      vptestmd(Xbyak::Opmask(1 + source), Xbyak::Zmm(result_.getIdx()), Xbyak::Zmm(result_.getIdx()));
    } else if (source > 0) {
      load(lanes_[static_cast<size_t>(source) - 1], table_ + at);
    }
  }

  void load_written() {
    constexpr size_t kAt = offsetof(ChannelGatherTable, written);
    if (has_masks()) {
      load(result_, table_ + kAt);
      vptestmd(k7, Xbyak::Zmm(result_.getIdx()), Xbyak::Zmm(result_.getIdx()));
    } else {
      load(written_, table_ + kAt);
    }
  }

  void gather(int pixels) override {
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const int bytes = pixel * vec_bytes();
      for (int i = 0; i < plan_.sources; ++i) {
        const auto slot = static_cast<size_t>(i);
        take(i, index_[slot], from_[slot] + offset_ + bytes);
      }
      write(to_ + offset_ + bytes);
    }
    add(offset_, pixels * vec_bytes());
  }

  void take(int source, const Vec& index, const Xbyak::RegExp& from) {
    if (has_masks()) {
      const Xbyak::Zmm into(result_.getIdx());
      const Xbyak::Opmask mask(1 + source);
      if (source == 0) {
        vpermps(into | mask | T_z, Xbyak::Zmm(index.getIdx()), ptr[from]);
      } else {
        vpermps(into | mask, Xbyak::Zmm(index.getIdx()), ptr[from]);
      }
      return;
    }
    const Xbyak::Ymm into(source == 0 ? result_.getIdx() : moved_.getIdx());
    vpermps(into, Xbyak::Ymm(index.getIdx()), ptr[from]);
    if (source > 0) vblendvps(result_, result_, moved_, lanes_[static_cast<size_t>(source) - 1]);
  }

  void write(const Xbyak::RegExp& to) {
    if (!plan_.is_partial) return store(to, result_);
    if (has_masks()) {
      vmovups(ptr[to] | k7, Xbyak::Zmm(result_.getIdx()));
    } else {
      vmaskmovps(ptr[to], written_, result_);
    }
  }

  std::vector<Vec> lanes_;
  Vec written_;
};

// Bytes: the lanes of several pixels at once.
class ByteGatherEmitter final : public GatherEmitter {
 public:
  explicit ByteGatherEmitter(const ChannelGatherPlan& plan) : GatherEmitter(plan, 4) {}

 private:
  void claim_vectors() override {
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

}  // namespace

void ChannelGatherTable::set(size_t source, int to, int from) {
  const auto lane = static_cast<size_t>(to);
  index[source][lane] = from;
  lanes[source][lane] = -1;
  written[lane] = -1;
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

std::string to_string(const ChannelGatherPlan& plan) {
  return std::string(plan.has_bytes ? "gather channels of bytes from " : "gather channels from ") +
         std::to_string(plan.sources) + (plan.is_partial ? " blocks, in part" : " blocks");
}

Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan) {
  const std::string key = std::string(has_avx512(plan.isa) ? "avx512 " : "avx2 ") + to_string(plan);
  return Kernel<ChannelGatherFn>(cached_code(
      key, [&] { return plan.has_bytes ? ByteGatherEmitter(plan).emit(key) : ChannelGatherEmitter(plan).emit(key); }));
}

}  // namespace lathe
