#include "jit/kernels/peak/memory_peak.h"

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 8;

class MemoryPeakEmitter : public Emitter {
 public:
  explicit MemoryPeakEmitter(Isa isa) : Emitter(isa) {}

  void emit(MemoryTraffic traffic) {
    begin();
    const Gpr from = argument(0), to = argument(1), chunks = argument(2);
    const std::vector<Vec> vecs = claim_vecs("moved", kUnroll);
    for (const Vec& vec : vecs) zero(vec);
    const int chunk = kUnroll * vec_bytes();
    loop_down(chunks, [&] {
      for (int i = 0; i < kUnroll; ++i) {
        const auto place = static_cast<size_t>(i);
        if (traffic != MemoryTraffic::write) load(vecs[place], from + i * vec_bytes());
        if (traffic != MemoryTraffic::read) store(to + i * vec_bytes(), vecs[place]);
      }
      if (traffic != MemoryTraffic::write) add(from, chunk);
      if (traffic != MemoryTraffic::read) add(to, chunk);
    });
    end();
  }
};

}  // namespace

Kernel<void(const void* from, void* to, int64_t chunks)> emit_memory_peak(Isa isa, MemoryTraffic traffic) {
  static constexpr const char* kNames[] = {"read", "write", "copy"};
  const std::string key = "memory_peak/" + std::string(name_of(isa)) + "/" + kNames[static_cast<size_t>(traffic)];
  return Kernel<void(const void*, void*, int64_t)>(cached_code(key, [&] {
    MemoryPeakEmitter emitter(isa);
    emitter.emit(traffic);
    return emitter.finish(key);
  }));
}

int64_t memory_peak_chunk(Isa isa) { return int64_t{kUnroll} * vector_lanes(isa) * 4; }

}  // namespace lathe
