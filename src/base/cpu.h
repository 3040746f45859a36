#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Instruction sets that plans are made for. Each is a superset of those before, but for avx2_vnni, which only avx2 is
// part of: AVX2 with dot products of bytes (AVX-VNNI), that CPUs with AVX-512 may lack.
enum class Isa { avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 };

std::string_view name_of(Isa isa);
std::optional<Isa> isa_named(std::string_view name);
inline bool has_avx512(Isa isa) { return isa >= Isa::avx512; }
inline int vector_lanes(Isa isa) { return has_avx512(isa) ? 16 : 8; }  // of float32
// Names what kernels differ in that take no more of an instruction set than its vectors.
inline std::string vector_set(Isa isa) { return has_avx512(isa) ? "avx512" : "avx2"; }
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
  double l3_bytes = 12;     // to and from L3, by one core
  bool adds_beside = true;  // additions have ports of their own beside the multiply-adds'
  bool operator==(const CoreRates&) const = default;
};
CoreRates core_rates(const CpuFacts& facts = cpu_facts());

// What CPUID and XGETBV say of instruction sets; zeros where the CPU lacks the leaf.
struct IsaBits {
  uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_1_eax = 0;
  uint64_t saved_state = 0;  // XCR0
};
// The sets that run, in the order of Isa; empty without AVX2, FMA, F16C or BMI2.
std::vector<Isa> isas_of(const IsaBits& bits);
// Those of `isas` up to the set named `cap`; all where it is empty. Throws Error(invalid_argument) on another name.
std::vector<Isa> isas_up_to(std::vector<Isa> isas, std::string_view cap);

// The sets that run here, up to LATHE_ISA (read once). Throws Error(unsupported) where there are none, and as
// isas_up_to() does.
const std::vector<Isa>& usable_isas();
bool is_usable(Isa isa);
Isa usable_isa();  // the last of them

}  // namespace lathe
