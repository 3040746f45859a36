#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace lathe {

// Instruction sets that plans are made for, each a superset of the one before.
enum class Isa { avx2, avx512, avx512_vnni, avx512_bf16 };

std::string_view name_of(Isa isa);
inline bool has_avx512(Isa isa) { return isa >= Isa::avx512; }
inline int vector_lanes(Isa isa) { return has_avx512(isa) ? 16 : 8; }  // of float32
inline int vector_registers(Isa isa) { return has_avx512(isa) ? 32 : 16; }

struct CpuFacts {
  std::string vendor;  // "AuthenticAMD"
  std::string brand;
  int family = 0, model = 0, stepping = 0;
  size_t l1d_bytes = 32 << 10, l2_bytes = 1 << 20, l3_bytes = 8 << 20;  // per core, per core, shared
};

const CpuFacts& cpu_facts();

// What a core does in a cycle, by its model: for rules that choose when nobody measured.
struct CoreRates {
  double wide_products = 1;  // multiply-adds or dot products on 512 bits; on 256 bits all do two
  double memory_bytes = 8;   // read from memory by one core
  double all_memory_bytes = 9;
  double l3_bytes = 12;  // to and from L3, by one core
  bool operator==(const CoreRates&) const = default;
};
CoreRates core_rates(const CpuFacts& facts = cpu_facts());
// The best set that CPU and operating system offer, capped by LATHE_ISA=avx2|avx512|avx512_vnni|avx512_bf16 (read
// once). Throws Error(unsupported) without AVX2 and FMA, Error(invalid_argument) on another value of LATHE_ISA.
Isa usable_isa();

}  // namespace lathe
