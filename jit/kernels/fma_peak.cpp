#include "jit/kernels/fma_peak.h"

#include "jit/emitter.h"

namespace lathe {
namespace {

// >= latency 4 x 2 ports, with room to spare; leaves registers for the factors on AVX2.
constexpr int kAccumulators = 12;
constexpr int kUnroll = 4;

class FmaPeakEmitter : public Emitter {
 public:
  explicit FmaPeakEmitter(Isa isa) : Emitter(isa) {}

  void emit() {
    begin();
    const Gpr iterations = argument(0);
    const std::vector<Vec> accumulators = claim_vecs("accumulators", kAccumulators);
    const Vec factor = claim_vec("factor");
    // Zeros: products stay zero, so nothing becomes denormal or infinite.
    zero(factor);
    for (const Vec& accumulator : accumulators) zero(accumulator);
    loop_down(iterations, [&] {
      for (int u = 0; u < kUnroll; ++u)
        for (const Vec& accumulator : accumulators) vfmadd231ps(accumulator, factor, factor);
    });
    end();
  }
};

}  // namespace

Kernel<void(int64_t)> emit_fma_peak(Isa isa) {
  const std::string key = "fma_peak/" + std::string(name_of(isa));
  return Kernel<void(int64_t)>(cached_code(key, [&] {
    FmaPeakEmitter emitter(isa);
    emitter.emit();
    return emitter.finish(key);
  }));
}

double fma_peak_flop(Isa isa) { return 2.0 * kAccumulators * kUnroll * vector_lanes(isa); }

}  // namespace lathe
