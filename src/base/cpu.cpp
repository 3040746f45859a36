#include "src/base/cpu.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lathe/error.h"

namespace lathe {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros when the CPU lacks the leaf.
Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(uint32_t word, int index) { return (word >> index & 1) != 0; }

// Register state that the operating system saves (XCR0).
uint64_t saved_state() {
  if (!bit(cpuid(1).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

IsaBits read_isa_bits() {
  const Registers basic = cpuid(1), extended = cpuid(7), extended1 = cpuid(7, 1);
  return {basic.ecx, extended.ebx, extended.ecx, extended1.eax, saved_state()};
}

std::vector<Isa> isas_here() {
  std::vector<Isa> isas = isas_of(read_isa_bits());
  if (isas.empty()) throw Error(ErrorCode::unsupported, "this CPU lacks AVX2, FMA, F16C or BMI2, which Lathe needs");
  const char* cap = std::getenv("LATHE_ISA");
  return isas_up_to(std::move(isas), cap == nullptr ? "" : cap);
}

std::string vendor_name() {
  const Registers r = cpuid(0);
  std::array<char, 13> text{};
  std::memcpy(text.data(), &r.ebx, 4);
  std::memcpy(text.data() + 4, &r.edx, 4);
  std::memcpy(text.data() + 8, &r.ecx, 4);
  return text.data();
}

std::string brand_name() {
  std::array<char, 49> text{};
  for (uint32_t part = 0; part < 3; ++part) {
    const Registers r = cpuid(0x80000002 + part);
    std::memcpy(text.data() + size_t{16} * part, &r, 16);
  }
  std::string brand = text.data();
  brand.erase(0, brand.find_first_not_of(' '));
  brand.erase(brand.find_last_not_of(' ') + 1);
  return brand;
}

// Leaf 4 of Intel and leaf 0x8000001d of AMD have one format: subleaf by subleaf, one cache each, until type 0.
void read_caches(uint32_t leaf, CpuFacts& facts) {
  for (uint32_t i = 0; i < 16; ++i) {
    const Registers r = cpuid(leaf, i);
    const uint32_t type = r.eax & 31, level = r.eax >> 5 & 7;
    if (type == 0) return;
    if (type == 2) continue;  // instructions
    const size_t ways = (r.ebx >> 22) + 1, partitions = (r.ebx >> 12 & 1023) + 1, line_bytes = (r.ebx & 4095) + 1;
    const size_t bytes = ways * partitions * line_bytes * (size_t{r.ecx} + 1);
    if (level == 1) facts.l1d_bytes = bytes;
    if (level == 2) facts.l2_bytes = bytes;
    if (level == 3) facts.l3_bytes = bytes;
  }
}

CpuFacts read_facts() {
  CpuFacts facts;
  facts.vendor = vendor_name();
  facts.brand = brand_name();
  const uint32_t version = cpuid(1).eax;
  const uint32_t base_family = version >> 8 & 15;
  facts.family = static_cast<int>(base_family + (base_family == 15 ? version >> 20 & 255 : 0));
  facts.model = static_cast<int>((version >> 4 & 15) | (version >> 16 & 15) << 4);
  facts.stepping = static_cast<int>(version & 15);
  read_caches(facts.vendor == "AuthenticAMD" || facts.vendor == "HygonGenuine" ? 0x8000001d : 4, facts);
  return facts;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return "avx2";
    case Isa::avx2_vnni:
      return "avx2_vnni";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_vnni:
      return "avx512_vnni";
    case Isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

std::optional<Isa> isa_named(std::string_view name) {
  for (Isa isa : {Isa::avx2, Isa::avx2_vnni, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16})
    if (name_of(isa) == name) return isa;
  return std::nullopt;
}

const CpuFacts& cpu_facts() {
  static const CpuFacts facts = read_facts();
  return facts;
}

// Zen 4 splits 512 bits in halves, Zen 5 does not but in its mobile models (Strix Point, Krackan Point), and what
// leaves its L2 is back before it is missed. Before them memory is slower (Zen 3, Milan: 13 GB/s for one core, 22 for
// two). Of Intel's cores those of Xeons have two multipliers of full width, and share a mesh that gives one core 12 to
// 14 GB/s at some 2.8 GHz; the first mobile and desktop ones with AVX-512 have one multiplier.
CoreRates core_rates(const CpuFacts& facts) {
  CoreRates rates;
  if (facts.vendor == "AuthenticAMD") {
    const int series = facts.model >> 4;
    const bool is_zen4 = facts.family == 25 && (series == 1 || series == 6 || series == 7 || series == 10);
    const bool is_mobile_zen5 = facts.family == 26 && (series == 2 || series == 6);
    if (facts.family <= 25 && !is_zen4) {
      rates = {1, 4, 8, 16};
    } else if (facts.family > 25 && !is_mobile_zen5) {
      rates = {2, 8, 10, 40};
    }
  } else if (facts.vendor == "GenuineIntel") {
    rates.adds_beside = false;
    static constexpr std::array kOneMultiplier = {0x66, 0x7d, 0x7e, 0x8c, 0x8d, 0xa7};
    const bool has_one = std::find(kOneMultiplier.begin(), kOneMultiplier.end(), facts.model) != kOneMultiplier.end();
    if (!has_one) rates = {2, 4.4, 8.8, 12, false};
  }
  return rates;
}

std::vector<Isa> isas_of(const IsaBits& bits) {
  constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6;
  const bool fma = bit(bits.leaf1_ecx, 12), f16c = bit(bits.leaf1_ecx, 29);
  const bool avx2 = bit(bits.leaf7_ebx, 5), bmi2 = bit(bits.leaf7_ebx, 8);
  if (!fma || !f16c || !avx2 || !bmi2 || (bits.saved_state & kYmmState) != kYmmState) return {};
  std::vector<Isa> isas = {Isa::avx2};
  if (bit(bits.leaf7_1_eax, 4)) isas.push_back(Isa::avx2_vnni);
  // F, DQ, CD, BW, VL: the set of every server since Skylake-X.
  for (int feature : {16, 17, 28, 30, 31})
    if (!bit(bits.leaf7_ebx, feature)) return isas;
  if ((bits.saved_state & kZmmState) != kZmmState) return isas;
  isas.push_back(Isa::avx512);
  if (!bit(bits.leaf7_ecx, 11)) return isas;
  isas.push_back(Isa::avx512_vnni);
  if (bit(bits.leaf7_1_eax, 5)) isas.push_back(Isa::avx512_bf16);
  return isas;
}

std::vector<Isa> isas_up_to(std::vector<Isa> isas, std::string_view cap) {
  if (cap.empty()) return isas;
  const std::optional<Isa> named = isa_named(cap);
  if (!named) {
    throw Error(ErrorCode::invalid_argument, "LATHE_ISA is '" + std::string(cap) +
                                                 "'; expected avx2, avx2_vnni, avx512, avx512_vnni or avx512_bf16");
  }
  isas.erase(std::upper_bound(isas.begin(), isas.end(), *named), isas.end());
  return isas;
}

const std::vector<Isa>& usable_isas() {
  static const std::vector<Isa> isas = isas_here();
  return isas;
}

bool is_usable(Isa isa) {
  const std::vector<Isa>& isas = usable_isas();
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

Isa usable_isa() {
  static const Isa isa = usable_isas().back();
  return isa;
}

}  // namespace lathe
