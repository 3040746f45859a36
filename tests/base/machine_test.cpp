#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "lathe/error.h"
#include "src/base/cgroup.h"
#include "src/base/cpu.h"
#include "src/base/topology.h"

namespace lathe {
namespace {

TEST(Cpu, KnowsItself) {
  const CpuFacts& facts = cpu_facts();
  EXPECT_EQ(facts.vendor.size(), 12U);
  EXPECT_GT(facts.family, 0);
  EXPECT_GE(facts.l1d_bytes, size_t{16} << 10);
  EXPECT_GE(facts.l2_bytes, facts.l1d_bytes);
}

TEST(Cpu, UsableIsaIsAtLeastAvx2) {
  EXPECT_GE(usable_isa(), Isa::avx2);
  EXPECT_EQ(vector_lanes(Isa::avx2), 8);
  EXPECT_EQ(vector_registers(Isa::avx512_vnni), 32);
  EXPECT_EQ(name_of(Isa::avx512_bf16), "avx512_bf16");
  EXPECT_FALSE(has_avx512(Isa::avx2_vnni));
  EXPECT_EQ(vector_lanes(Isa::avx2_vnni), 8);
  EXPECT_EQ(usable_isas().front(), Isa::avx2);
  for (const Isa isa : usable_isas()) EXPECT_TRUE(is_usable(isa)) << name_of(isa);
}

constexpr uint32_t kFmaF16c = 1U << 12 | 1U << 29, kAvx2Bmi2 = 1U << 5 | 1U << 8;
constexpr uint32_t kAvx512 = 1U << 16 | 1U << 17 | 1U << 28 | 1U << 30 | 1U << 31, kAvx512Vnni = 1U << 11;
constexpr uint32_t kAvxVnni = 1U << 4, kAvx512Bf16 = 1U << 5;
constexpr uint64_t kYmmSaved = 0x6, kZmmSaved = 0xe6;
const IsaBits kAlderLake = {kFmaF16c, kAvx2Bmi2, 0, kAvxVnni, kYmmSaved};
const IsaBits kZen4 = {kFmaF16c, kAvx2Bmi2 | kAvx512, kAvx512Vnni, kAvx512Bf16, kZmmSaved};

TEST(Cpu, TellsInstructionSetsByTheirBits) {
  using Isas = std::vector<Isa>;
  const Isas zen4 = {Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16};
  EXPECT_EQ(isas_of({kFmaF16c, kAvx2Bmi2, 0, 0, kYmmSaved}), Isas{Isa::avx2}) << "Haswell";
  EXPECT_EQ(isas_of(kAlderLake), (Isas{Isa::avx2, Isa::avx2_vnni}));
  EXPECT_EQ(isas_of({kFmaF16c, kAvx2Bmi2 | kAvx512, 0, 0, kZmmSaved}), (Isas{Isa::avx2, Isa::avx512})) << "Skylake-X";
  EXPECT_EQ(isas_of(kZen4), zen4);
  IsaBits zen5 = kZen4;
  zen5.leaf7_1_eax |= kAvxVnni;
  EXPECT_EQ(isas_of(zen5).size(), 5U);
  zen5.saved_state = kYmmSaved;
  EXPECT_EQ(isas_of(zen5), (Isas{Isa::avx2, Isa::avx2_vnni})) << "the system saves no registers of 512 bits";
  zen5.saved_state = 0;
  EXPECT_TRUE(isas_of(zen5).empty());
  EXPECT_TRUE(isas_of({kFmaF16c, 0, 0, 0, kYmmSaved}).empty()) << "Ivy Bridge and older";
}

TEST(Cpu, UsesNoMoreThanItIsTold) {
  const auto best_of = [](const IsaBits& bits, const char* cap) { return isas_up_to(isas_of(bits), cap).back(); };
  EXPECT_EQ(best_of(kAlderLake, ""), Isa::avx2_vnni);
  EXPECT_EQ(best_of(kAlderLake, "avx512_bf16"), Isa::avx2_vnni);
  EXPECT_EQ(best_of(kAlderLake, "avx2"), Isa::avx2);
  EXPECT_EQ(best_of(kZen4, "avx2_vnni"), Isa::avx2) << "which has no such instructions";
  EXPECT_EQ(best_of(kZen4, "avx512"), Isa::avx512);
  EXPECT_EQ(isas_up_to(isas_of(kZen4), "avx512"), (std::vector<Isa>{Isa::avx2, Isa::avx512}));
  try {
    isas_up_to(isas_of(kZen4), "avx10");
    FAIL() << "took a name that it does not know";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "LATHE_ISA is 'avx10'; expected avx2, avx2_vnni, avx512, avx512_vnni or avx512_bf16");
  }
}

CoreRates rates_of(const char* vendor, int family, int model) {
  CpuFacts facts;
  facts.vendor = vendor;
  facts.family = family;
  facts.model = model;
  return core_rates(facts);
}

TEST(CoreRates, KnowCoresWithTwoWideMultipliers) {
  EXPECT_EQ(rates_of("AuthenticAMD", 25, 17), CoreRates()) << "Zen 4";
  EXPECT_EQ(rates_of("AuthenticAMD", 25, 0x61), CoreRates()) << "Zen 4 for desktops";
  EXPECT_LT(rates_of("AuthenticAMD", 25, 1).memory_bytes, CoreRates().memory_bytes) << "Zen 3";
  EXPECT_EQ(rates_of("AuthenticAMD", 25, 0x21), rates_of("AuthenticAMD", 25, 1)) << "Zen 3 for desktops";
  EXPECT_EQ(rates_of("AuthenticAMD", 26, 2).wide_products, 2) << "Zen 5";
  EXPECT_EQ(rates_of("AuthenticAMD", 26, 0x24), CoreRates()) << "Strix Point: halves, as Zen 4";
  EXPECT_GT(rates_of("AuthenticAMD", 26, 2).l3_bytes, CoreRates().l3_bytes);
  EXPECT_EQ(rates_of("GenuineIntel", 6, 207).wide_products, 2) << "Emerald Rapids";
  EXPECT_LT(rates_of("GenuineIntel", 6, 207).memory_bytes, CoreRates().memory_bytes);
  EXPECT_EQ(rates_of("GenuineIntel", 6, 0x8c).wide_products, 1) << "Tiger Lake";
  EXPECT_FALSE(rates_of("GenuineIntel", 6, 207).adds_beside || rates_of("GenuineIntel", 6, 0x8c).adds_beside);
  EXPECT_EQ(rates_of("SomebodyElse", 1, 1), CoreRates());
}

TEST(Topology, PreferredCpusAreTheAffinityMask) {
  const std::vector<int> cpus = preferred_cpus();
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&mask));
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size());
  for (int cpu : cpus) EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpu), &mask)) << cpu;
}

TEST(Topology, ThreadsFollowTheAffinityMask) {
  EXPECT_GE(usable_threads(), 1);
  EXPECT_LE(usable_threads(), static_cast<int>(preferred_cpus().size()));
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(preferred_cpus().front()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_threads(), 1);
  EXPECT_EQ(preferred_cpus().size(), 1U);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

// A folder that looks like /sys/fs/cgroup.
class Cgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    mount_ =
        std::filesystem::path(::testing::TempDir()) /
        ("lathe_cgroup_" + std::to_string(getpid()) + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove_all(mount_); }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((mount_ / file).parent_path());
    std::ofstream(mount_ / file) << text;
  }
  CgroupLimits limits(const std::string& membership) { return read_cgroup_limits(membership, mount_.string()); }

  std::filesystem::path mount_;
};

TEST_F(Cgroup, Version2QuotaIsTheTightestUpToTheRoot) {
  write("a/cpu.max", "250000 100000\n");
  write("a/b/cpu.max", "max 100000\n");
  write("a/memory.max", "1048576\n");
  write("a/b/memory.max", "max\n");
  EXPECT_EQ(limits("0::/a/b\n").cpus, 2.5);
  EXPECT_EQ(limits("0::/a/b\n").memory_bytes, 1048576U);
}

TEST_F(Cgroup, Version2InsideAContainerReadsTheMountItself) {
  write("cpu.max", "150000 100000\n");
  EXPECT_EQ(limits("0::/seen/only/from/outside\n").cpus, 1.5);
  EXPECT_EQ(limits("0::/\n").cpus, 1.5);
}

TEST_F(Cgroup, Version1ReadsQuotaAndPeriod) {
  write("cpu,cpuacct/box/cpu.cfs_quota_us", "300000\n");
  write("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  write("memory/box/memory.limit_in_bytes", "2097152\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  const CgroupLimits found = limits("12:cpu,cpuacct:/box\n5:memory:/box\n1:name=systemd:/x\n");
  EXPECT_EQ(found.cpus, 3.0);
  EXPECT_EQ(found.memory_bytes, 2097152U);
}

TEST_F(Cgroup, NoLimitAndNonsenseLimitNothing) {
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits("3:cpu:/\n").cpus, std::nullopt);
  EXPECT_EQ(limits("0::/gone\n").cpus, std::nullopt);
  EXPECT_EQ(limits("junk\n:\n").cpus, std::nullopt);
}

}  // namespace
}  // namespace lathe
