#include "jit/kernels/copy/channel_gather.h"

#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

class ChannelGatherEmitter : public Emitter {
 public:
  explicit ChannelGatherEmitter(const ChannelGatherPlan& plan) : Emitter(plan.isa), plan_(plan) {
    if (plan.sources < 1 || plan.sources > kMostGatherSources) throw JitError("no plan: " + to_string(plan));
  }

  void emit() {
    claim();
    begin();
    load_arguments();
    while_at_least(pixels_, 2, [&] { gather(2); });
    while_at_least(pixels_, 1, [&] { gather(1); });
    end();
  }

 private:
  void claim() {
    args_ = argument(0);
    table_ = claim_gpr("table");
    to_ = claim_gpr("to");
    pixels_ = claim_gpr("pixels left");
    offset_ = claim_gpr("offset");
    for (int i = 0; i < plan_.sources; ++i) {
      from_.push_back(claim_gpr("source"));
      index_.push_back(claim_vec("index"));
      // The first source's result needs no blend; opmasks are AVX-512's.
      if (!has_masks() && i > 0) lanes_.push_back(claim_vec("lanes of a source"));
    }
    result_ = claim_vec("result");
    if (!has_masks()) moved_ = claim_vec("moved lanes");
    if (!has_masks() && plan_.is_partial) written_ = claim_vec("written lanes");
  }

  void load_arguments() {
    mov(table_, ptr[args_ + offsetof(ChannelGatherArgs, table)]);
    mov(to_, ptr[args_ + offsetof(ChannelGatherArgs, to)]);
    mov(pixels_, ptr[args_ + offsetof(ChannelGatherArgs, pixels)]);
    for (int i = 0; i < plan_.sources; ++i) {
      const auto slot = static_cast<size_t>(i);
      mov(from_[slot], ptr[args_ + offsetof(ChannelGatherArgs, sources) + slot * sizeof(void*)]);
      load(index_[slot], table_ + offsetof(ChannelGatherTable, index) + slot * sizeof(std::array<int32_t, 16>));
      load_lanes(i, offsetof(ChannelGatherTable, lanes) + slot * sizeof(std::array<int32_t, 16>));
    }
    if (plan_.is_partial) load_written();
    xor_(offset_.cvt32(), offset_.cvt32());
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

  void gather(int pixels) {
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

  ChannelGatherPlan plan_;
  Gpr args_, table_, to_, pixels_, offset_;
  std::vector<Gpr> from_;
  std::vector<Vec> index_, lanes_;
  Vec result_, moved_, written_;
};

}  // namespace

std::string to_string(const ChannelGatherPlan& plan) {
  return "gather channels from " + std::to_string(plan.sources) + (plan.is_partial ? " blocks, in part" : " blocks");
}

Kernel<ChannelGatherFn> channel_gather_kernel(const ChannelGatherPlan& plan) {
  const std::string key = std::string(has_avx512(plan.isa) ? "avx512 " : "avx2 ") + to_string(plan);
  return Kernel<ChannelGatherFn>(cached_code(key, [&] {
    ChannelGatherEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
