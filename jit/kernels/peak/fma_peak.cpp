#include "jit/kernels/peak/fma_peak.h"

#include "jit/kernels/common/int8_lanes.h"

namespace lathe {
namespace {

// >= latency 4 x 2 ports, with room to spare; leaves registers for the factors on AVX2.
constexpr int kAccumulators = 12;
constexpr int kUnroll = 4;
constexpr int kQuotients = 4;  // that nothing waits for

Int8Dot dot_of_bytes(Isa isa) { return has_vnni(isa) ? Int8Dot::u8s8 : Int8Dot::u8s7; }

// What is done for it on this instruction set.
Arithmetic done_as(Isa isa, Arithmetic wanted) {
  if (wanted == Arithmetic::bf16 && isa != Isa::avx512_bf16) return Arithmetic::f32;
  if (wanted == Arithmetic::bytes && !has_dot(isa, dot_of_bytes(isa))) return Arithmetic::pairs;
  return wanted;
}

class FmaPeakEmitter : public Int8Emitter {
 public:
  FmaPeakEmitter(Isa isa, Arithmetic arithmetic) : Int8Emitter(isa), arithmetic_(arithmetic) {}

  void emit() {
    begin();
    const Gpr iterations = argument(0);
    const std::vector<Vec> accumulators = claim_vecs("accumulators", kAccumulators);
    const Vec factor = claim_vec("factor"), temp = claim_vec("temp");
    // Zeros: products stay zero, so nothing becomes denormal or infinite.
    zero(factor);
    for (const Vec& accumulator : accumulators) zero(accumulator);
    loop_down(iterations, [&] {
      for (int u = 0; u < kUnroll; ++u)
        for (const Vec& accumulator : accumulators) multiply_add(accumulator, factor, temp);
    });
    end();
    if (arithmetic_ == Arithmetic::bytes) emit_dot_constants(dot_of_bytes(isa()));
  }

 private:
  void multiply_add(const Vec& sum, const Vec& factor, const Vec& temp) {
    switch (arithmetic_) {
      case Arithmetic::f32:
        return vfmadd231ps(sum, factor, factor);
      case Arithmetic::bf16:
        return vdpbf16ps(sum, factor, factor);
      case Arithmetic::bytes:
        return dot(dot_of_bytes(isa()), sum, factor, factor, temp);
      case Arithmetic::pairs:
        return dot(Int8Dot::pairs, sum, factor, factor, temp);
    }
  }

  Arithmetic arithmetic_;
};

class DivisionPeakEmitter : public Emitter {
 public:
  explicit DivisionPeakEmitter(Isa isa) : Emitter(isa) {}

  void emit(bool among_products) {
    begin();
    const Gpr iterations = argument(0), bits = claim_gpr("bits");
    const std::vector<Vec> quotients = claim_vecs("quotients", kQuotients);
    const std::vector<Vec> sums = claim_vecs("sums", kProductsBesideDivision);
    const Vec one = claim_vec("one"), zeros = claim_vec("zeros");
    zero(zeros);
    for (const Vec& sum : sums) zero(sum);
    mov(bits.cvt32(), 0x3f800000);
    vmovd(Xbyak::Xmm(one.getIdx()), bits.cvt32());
    vbroadcastss(one, Xbyak::Xmm(one.getIdx()));
    loop_down(iterations, [&] {
      for (int i = 0; i < kAccumulators; ++i) {
        vdivps(quotients[static_cast<size_t>(i % kQuotients)], one, one);
        if (!among_products) continue;
        for (const Vec& sum : sums) vfmadd231ps(sum, zeros, zeros);
      }
    });
    end();
  }
};

}  // namespace

Kernel<void(int64_t)> emit_fma_peak(Isa isa, Arithmetic arithmetic) {
  static constexpr const char* kNames[kArithmeticCount] = {"f32", "bf16", "bytes", "pairs"};
  const Arithmetic done = done_as(isa, arithmetic);
  const std::string key = "fma_peak/" + std::string(name_of(isa)) + "/" + kNames[static_cast<size_t>(done)];
  return Kernel<void(int64_t)>(cached_code(key, [&] {
    FmaPeakEmitter emitter(isa, done);
    emitter.emit();
    return emitter.finish(key);
  }));
}

double fma_peak_flop(Isa isa, Arithmetic arithmetic) {
  static constexpr double kProducts[kArithmeticCount] = {1, 2, 4, 2};  // in a 32-bit lane
  return 2.0 * kAccumulators * kUnroll * vector_lanes(isa) * kProducts[static_cast<size_t>(done_as(isa, arithmetic))];
}

Kernel<void(int64_t)> emit_division_peak(Isa isa, bool among_products) {
  const std::string key = (among_products ? "division_among_products/" : "division_peak/") + std::string(name_of(isa));
  return Kernel<void(int64_t)>(cached_code(key, [&] {
    DivisionPeakEmitter emitter(isa);
    emitter.emit(among_products);
    return emitter.finish(key);
  }));
}

double division_peak_count(Isa isa) { return 1.0 * kAccumulators * vector_lanes(isa); }

}  // namespace lathe
