// Channels in blocks that are moved one by one: shuffled, joined and taken apart.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_bytes;
using testing::random_tensor;

void expect_as_reference(OneNode& one, const std::string& op, int version, const Attributes& attributes, Isa isa,
                         bool is_blocked) {
  const int block = is_blocked ? vector_lanes(isa) : 0;
  one.is_constant.assign(one.inputs.size(), false);
  one.make(op, version, attributes, std::vector<int>(one.inputs.size(), block), block);
  const Tensor expected = one.expected();
  for (const int threads : {1, 3}) {
    const std::optional<Tensor> got = one.run(isa, threads);
    ASSERT_TRUE(got) << "the reference ran";
    ASSERT_EQ(got->dims(), expected.dims());
    ASSERT_EQ(got->dtype(), expected.dtype());
    ASSERT_EQ(std::memcmp(got->raw(), expected.raw(), expected.bytes()), 0);
  }
}

TEST(ShuffleChannels, MovesChannelsOfEitherLayout) {
  std::mt19937 random(1);
  for (const Isa isa : isas_here()) {
    for (const bool is_blocked : {true, false}) {
      for (const auto& [groups, size] :
           std::vector<std::pair<int64_t, int64_t>>{{3, 80}, {2, 16}, {4, 5}, {1, 20}, {20, 2}, {7, 3}}) {
        SCOPED_TRACE(std::string(name_of(isa)) + " groups " + std::to_string(groups) + " of " + std::to_string(size));
        const Dims dims{2, groups * size, 3, 5};
        for (const Tensor& input : {random_tensor(dims, random), random_bytes(DType::u8, dims, random)}) {
          OneNode one;
          one.domain = "lathe";
          one.inputs = {input};
          Attributes attributes;
          attributes.set("groups", groups);
          expect_as_reference(one, "ShuffleChannels", 1, attributes, isa, is_blocked);
        }
      }
    }
  }
}

TEST(ShuffleChannels, IsATransposeOfGroups) {
  OneNode one;
  one.domain = "lathe";
  one.inputs = {Tensor::from<float>({1, 6, 1, 1}, std::vector<float>{0, 1, 2, 3, 4, 5})};
  one.is_constant = {false};
  Attributes attributes;
  attributes.set("groups", int64_t{2});
  one.make("ShuffleChannels", 1, attributes, {0}, 0);
  const Tensor shuffled = one.expected();
  const std::vector<float> expected{0, 3, 1, 4, 2, 5};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(shuffled.data<float>()[i], expected[i]);
}

TEST(BlockedDynamicQuantize, SeesChannelsOnly) {
  std::mt19937 random(5);
  const std::vector<Dims> cases{{2, 20, 3, 5}, {1, 16, 4, 4},    {1, 3, 9},
                                {1, 40, 0, 3}, {2, 20, 90, 101}, {3, 32, 60, 60}};
  for (const Isa isa : isas_here()) {
    for (const bool is_blocked : {true, false}) {
      for (const Dims& dims : cases) {
        SCOPED_TRACE(std::string(name_of(isa)) + " " + to_string(dims) + (is_blocked ? " blocked" : ""));
        OneNode one;
        one.inputs = {random_tensor(dims, random, -0.3F, 2)};
        expect_as_reference(one, "DynamicQuantizeLinear", 11, {}, isa, is_blocked);
      }
    }
  }
}

TEST(BlockedTranspose, ReadsBlocksOrWritesThem) {
  std::mt19937 random(3);
  const std::vector<std::pair<Dims, std::vector<int64_t>>> cases{
      {{2, 32, 3, 5}, {0, 2, 3, 1}}, {{1, 40, 1, 7}, {0, 3, 2, 1}}, {{1, 5, 20}, {0, 2, 1}},
      {{3, 17, 2, 4}, {1, 0, 3, 2}}, {{1, 20, 3, 6}, {0, 1, 3, 2}}, {{2, 120, 1, 1}, {0, 2, 3, 1}},
      {{2, 3, 17, 6}, {0, 2, 1, 3}}, {{2, 9, 33}, {2, 1, 0}},       {{1, 1, 24, 70}, {3, 2, 0, 1}},
      {{2, 3, 4, 40}, {0, 3, 1, 2}}};
  for (const Isa isa : isas_here()) {
    for (const bool reads_blocks : {true, false}) {
      for (const auto& [dims, perm] : cases) {
        SCOPED_TRACE(std::string(name_of(isa)) + " " + to_string(dims) + " perm " + to_string(perm) +
                     (reads_blocks ? " read" : " written"));
        OneNode one;
        one.inputs = {random_tensor(dims, random)};
        one.is_constant = {false};
        Attributes attributes;
        attributes.set("perm", perm);
        const int block = vector_lanes(isa);
        one.make("Transpose", 13, attributes, {reads_blocks ? block : 0}, reads_blocks ? 0 : block);
        const Tensor expected = one.expected();
        for (const int threads : {1, 3}) {
          const std::optional<Tensor> got = one.run(isa, threads);
          ASSERT_TRUE(got) << "the reference ran";
          for (int64_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(got->data<float>()[i], expected.data<float>()[i]) << i;
          }
        }
      }
    }
  }
}

TEST(BlockedPad, PadsPixelsInEachMode) {
  std::mt19937 random(4);
  const std::vector<std::pair<Dims, std::vector<int64_t>>> cases{{{2, 20, 3, 5}, {0, 0, 2, 1, 0, 0, 1, 2}},
                                                                 {{1, 16, 1, 7}, {0, 0, 0, 4, 0, 0, 0, 6}},
                                                                 {{2, 3, 4}, {0, 0, 3, 0, 0, 0}},
                                                                 {{1, 40, 2, 2}, {0, 0, 5, 0, 0, 0, 0, 7}}};
  for (const Isa isa : isas_here()) {
    for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
      for (const auto& [dims, pads] : cases) {
        for (const bool is_blocked : {true, false}) {
          SCOPED_TRACE(std::string(name_of(isa)) + " " + mode + " " + to_string(dims) + " by " + to_string(pads) +
                       (is_blocked ? " blocked" : ""));
          OneNode one;
          one.inputs = {random_tensor(dims, random),
                        Tensor::from<int64_t>({static_cast<int64_t>(pads.size())}, std::span<const int64_t>(pads)),
                        Tensor::scalar(0.5f)};
          one.is_constant = {false, true, true};
          const int block = is_blocked ? vector_lanes(isa) : 0;
          Attributes attributes;
          attributes.set("mode", std::string(mode));
          one.make("Pad", 13, attributes, {block, 0, 0}, block);
          const Tensor expected = one.expected();
          for (const int threads : {1, 3}) {
            const std::optional<Tensor> got = one.run(isa, threads);
            ASSERT_TRUE(got) << "the reference ran";
            for (int64_t i = 0; i < expected.size(); ++i) {
              ASSERT_EQ(got->data<float>()[i], expected.data<float>()[i]) << i;
            }
          }
        }
      }
    }
  }
}

TEST(BlockedConcat, JoinsPartsThatAreNoWholeBlocks) {
  std::mt19937 random(2);
  for (const Isa isa : isas_here()) {
    for (const std::vector<int64_t>& parts : std::vector<std::vector<int64_t>>{
             {24, 24, 24, 24}, {1, 2, 3}, {16, 5, 30}, {5, 16}, {3, 1, 1, 1, 1, 1, 1, 1, 1, 40}}) {
      for (const int64_t images : {1, 2}) {
        SCOPED_TRACE(std::string(name_of(isa)) + " parts " + to_string(parts) + " images " + std::to_string(images));
        for (const bool has_bytes : {false, true}) {
          OneNode one;
          for (const int64_t channels : parts) {
            const Dims dims{images, channels, 2, 3};
            one.inputs.push_back(has_bytes ? random_bytes(DType::u8, dims, random) : random_tensor(dims, random));
          }
          Attributes attributes;
          attributes.set("axis", int64_t{1});
          expect_as_reference(one, "Concat", 13, attributes, isa, true);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
