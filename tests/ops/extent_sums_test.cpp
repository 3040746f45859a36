// What extents are for all shapes of a graph's inputs, and what nobody can say of them.
#include "graph/extent_sums.h"

#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::PassNet;

TensorType open_type(std::initializer_list<Dim> dims, DType dtype = DType::f32) { return {dtype, true, dims, {}}; }

// keys [b, 2, past, 8], new [b, 2, 1, 8].
struct Cache : PassNet {
  ValueId past = input(open_type({{-1, "b"}, {2, ""}, {-1, "past"}, {8, ""}}));
  ValueId added = input(open_type({{-1, "b"}, {2, ""}, {1, ""}, {8, ""}}));
  ValueId keys = op("Concat", {past, added}, {{"axis", int64_t{2}}});

  ValueId place(ValueId list, int64_t at) { return op("Gather", {list, integers({at})}); }
  ValueId join(const std::vector<ValueId>& parts) { return op("Concat", parts, {{"axis", int64_t{0}}}); }
  ValueId bigger(ValueId number) { return op("Add", {number, integers({1})}); }
  // "2*in0.2+3 in0.0", "?" where not all are known.
  std::string elements(ValueId id) {
    infer_types(graph);
    const auto sums = ExtentSums(graph).elements(id);
    std::string text = sums ? "" : "?";
    for (size_t i = 0; sums && i < sums->size(); ++i) {
      text += i > 0 ? " " : "";
      for (const auto& [extent, factor] : (*sums)[i].factors)
        text += std::to_string(factor) + "*in" + std::to_string(extent.input) + "." + std::to_string(extent.axis) + "+";
      text += std::to_string((*sums)[i].number);
    }
    return text;
  }
};

TEST(ExtentSums, OfWhatIsJoined) {
  Cache net;
  EXPECT_EQ(net.elements(net.op("Shape", {net.op("Neg", {net.keys})})), "1*in0.0+0 2 1*in0.2+1 8");
}

// As torch spells heads that are repeated: -1 would mean an extent that stays.
TEST(ExtentSums, OfWhatIsSpreadToAShape) {
  Cache net;
  const ValueId shape = net.op("Shape", {net.keys});
  const ValueId rows = net.place(shape, 2);
  const ValueId wanted = net.join({net.bigger(net.place(shape, 0)), net.integers({2, 4}), rows, net.integers({8})});
  const ValueId stays = net.op("Equal", {wanted, net.integers({-1, -1, -1, -1, -1})});
  const ValueId target = net.op("Where", {stays, net.integers({1, 1, 1, 1, 1}), wanted});
  const ValueId wide = net.op("Expand", {net.op("Unsqueeze", {net.keys, net.integers({2})}), target});
  const ValueId flat = net.op("Reshape", {wide, net.join({net.integers({-1, 8}), rows, net.integers({8})})});
  const ValueId result = net.op("Shape", {flat});
  EXPECT_EQ(net.elements(net.op("Slice", {result, net.integers({1}), net.integers({4})})), "8 1*in0.2+1 8");
  EXPECT_EQ(net.elements(result), "?");  // as many as there are elements
}

TEST(ExtentSums, OfArithmetic) {
  Cache net;
  const ValueId shape = net.op("Shape", {net.past}), past = net.place(shape, 2);
  const ValueId twice = net.op("Mul", {past, net.integers({2})});
  EXPECT_EQ(net.elements(net.op("Sub", {net.bigger(twice), net.place(shape, 0)})), "-1*in0.0+2*in0.2+1");
  EXPECT_EQ(net.elements(net.op("Sub", {twice, twice})), "0");
  EXPECT_EQ(net.elements(net.op("Equal", {past, net.integers({-1})})), "0");
  const ValueId narrow = net.op("Cast", {net.bigger(past)}, {{"to", int64_t{6}}});
  EXPECT_EQ(net.elements(net.op("Cast", {narrow}, {{"to", int64_t{7}}})), "1*in0.2+1");
}

TEST(ExtentSums, OfPositionsOfAFixedNumber) {
  Cache net;
  const auto scalar = [&](ValueId list) { return net.op("Squeeze", {list, net.integers({0})}); };
  const ValueId past = net.place(net.op("Shape", {net.past}), 2);
  const auto range = [&](int64_t count) {
    return net.op("Range",
                  {scalar(past), scalar(net.op("Add", {past, net.integers({count})})), scalar(net.integers({1}))});
  };
  const ValueId two = range(2), many = range(100000);
  const ValueId rows = net.op("Gather", {net.weights({50, 3}), two});
  EXPECT_EQ(net.elements(two), "1*in0.2+0 1*in0.2+1");
  EXPECT_EQ(net.elements(net.op("Shape", {rows})), "2 3");
  EXPECT_EQ(net.elements(many), "?");
}

TEST(ExtentSums, SayNothingOfWhatDependsOnMore) {
  Cache net;
  const ValueId shape = net.op("Shape", {net.past}), past = net.place(shape, 2);
  // Whether 50 rows are there; which is more; zero stands for an extent that stays.
  const ValueId some = net.op("Slice", {net.past, net.integers({0}), net.integers({50}), net.integers({2})});
  EXPECT_EQ(net.elements(net.op("Shape", {some})), "?");
  EXPECT_EQ(net.elements(net.op("Mul", {past, past})), "?");
  EXPECT_EQ(net.elements(net.op("Div", {past, net.integers({2})})), "?");
  EXPECT_EQ(net.elements(net.op("Equal", {past, net.integers({3})})), "?");
  const ValueId target = net.join({past, net.integers({-1})});
  EXPECT_EQ(net.elements(net.place(net.op("Shape", {net.op("Reshape", {net.past, target})}), 0)), "?");
  // Numbers so large that sums of them might overflow.
  const ValueId large = net.op("Mul", {net.bigger(past), net.integers({1 << 30})});
  EXPECT_EQ(net.elements(net.op("Mul", {large, net.integers({1 << 30})})), "?");
  EXPECT_EQ(net.elements(net.place(shape, 4)), "?");
}

}  // namespace
}  // namespace lathe
