// Convolutions of integers on blocked channels, generated code against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>

#include "jit/kernels/common/int8_dot.h"
#include "ops/numbers.h"
#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"
#include "tests/ops/step_memory.h"

namespace lathe {
namespace {

using testing::blocked_index;
using testing::FallbackPlans;
using testing::GuardedBytes;
using testing::random_tensor;
using testing::write_value;

Tensor random_bytes(DType dtype, const Dims& dims, std::mt19937& random, bool is_extreme = false) {
  constexpr uint8_t kExtremes[] = {0x00, 0x7f, 0x80, 0xff};
  Tensor tensor(dtype, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const auto byte = static_cast<uint8_t>(random());
    static_cast<uint8_t*>(tensor.mutable_raw())[i] = is_extreme ? kExtremes[byte % 4] : byte;
  }
  return tensor;
}

struct ConvCase {
  Dims in, weights;
  std::vector<int64_t> pads = {}, strides = {}, dilations = {};
  int64_t groups = 1;
  DType dtype = DType::u8, weight_dtype = DType::i8;
  bool has_weight_zeros = false, is_picture = false, is_dynamic = false;
  DType output = DType::u8;
  int threads = 1;
  bool has_curve = false;  // else a residual
  bool is_extreme = false;
  bool has_seven_bits = false;
  int large_of = 0;  // not 0: the zero point is near 0, and but one of so many bytes, and its neighbour, are small
  // The zero point is in the middle, and no byte is more than so many below it; 0: any.
  int most_below = 0;

  friend std::ostream& operator<<(std::ostream& out, const ConvCase& c) {
    return out << to_string(c.in) << " " << name_of(c.dtype) << " * " << to_string(c.weights) << "/" << c.groups << " "
               << name_of(c.weight_dtype) << (c.has_weight_zeros ? " zeros" : "") << (c.is_picture ? " plain" : "")
               << " -> " << name_of(c.output) << " threads " << c.threads;
  }
};

// round((x0 + 2) / 3 + residual) - 1, or the same without rounding
Epilogue requantization(DType output) {
  Epilogue epilogue;
  epilogue.inputs = 1;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::u8};
  e.output = output;
  const int shifted = e.add({ExprOp::add, e.add({ExprOp::input, 0}), e.add({.op = ExprOp::constant, .value = 2})});
  const int scaled = e.add({ExprOp::div, shifted, e.add({.op = ExprOp::constant, .value = 3})});
  const int all = e.add({ExprOp::add, scaled, e.add({ExprOp::input, 1})});
  if (output == DType::f32) return epilogue;
  const int one = e.add({.op = ExprOp::constant, .value = 1});
  e.add({ExprOp::sub, e.add({ExprOp::round_even, all}), one});
  return epilogue;
}

// SiLU of bytes, as bytes: round(silu((clamp(round(x0 / 0.05) + 90) - 90) * 0.05) / 0.03) + 60
Epilogue curve_of_bytes(DType output) {
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  e.output = output;
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const auto quantized = [&](int x, float scale, float zero) {
    return e.add({ExprOp::add, e.add({ExprOp::round_even, e.add({ExprOp::div, x, constant(scale)})}), constant(zero)});
  };
  const int low = e.add({ExprOp::max, quantized(e.add({ExprOp::input, 0}), 0.05F, 90), constant(0)});
  const int byte = e.add({ExprOp::min, low, constant(255)});
  const int x = e.add({ExprOp::mul, e.add({ExprOp::sub, byte, constant(90)}), constant(0.05F)});
  quantized(e.add({ExprOp::mul, x, e.add({ExprOp::sigmoid, x})}), 0.03F, output == DType::u8 ? 60.0F : -60.0F);
  return epilogue;
}

class ConvRun {
 public:
  ConvRun(const ConvCase& c, int lanes, std::mt19937& random) : case_(c), lanes_(lanes) {
    const int64_t channels = c.weights[0];
    inputs_ = {random_bytes(c.dtype, c.in, random, c.is_extreme),
               random_bytes(c.weight_dtype, c.weights, random, c.is_extreme),
               has_scale() ? random_tensor({channels}, random, 1e-3F, 3e-3F) : Tensor(),
               random_bytes(c.dtype, {}, random, c.is_extreme),
               c.has_weight_zeros ? random_bytes(c.weight_dtype, {channels}, random, c.is_extreme) : Tensor(),
               Tensor(DType::i32, {channels})};
    for (int64_t i = 0; c.has_seven_bits && i < inputs_[1].size(); ++i) {
      int8_t& weight = inputs_[1].mutable_data<int8_t>()[i];
      weight = std::clamp<int8_t>(weight, -64, 64);
    }
    if (c.large_of > 0) make_small(random);
    if (c.most_below > 0) put_above(random);
    // By itself not near 0, where fours are added.
    if (c.large_of == 0 && c.has_seven_bits) *static_cast<uint8_t*>(inputs_[3].mutable_raw()) |= 64;
    for (int64_t i = 0; i < channels; ++i) inputs_[5].mutable_data<int32_t>()[i] = static_cast<int32_t>(i * 37 - 200);
    node_.op = &OpRegistry::builtin().require("lathe", "QuantizedConv");
    node_.name = "tested";
    if (!c.pads.empty()) node_.attributes.set("pads", c.pads);
    if (!c.strides.empty()) node_.attributes.set("strides", c.strides);
    if (!c.dilations.empty()) node_.attributes.set("dilations", c.dilations);
    node_.attributes.set("group", c.groups);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      node_.inputs.push_back(!inputs_[i].defined()    ? ValueId::none
                             : i == 0                 ? add_input(inputs_[i], c.is_picture ? 0 : lanes)
                             : i == 3 && c.is_dynamic ? add_input(inputs_[i], 0)
                                                      : graph_.add_constant("c" + std::to_string(i), inputs_[i]));
    }
    node_.outputs = {graph_.add_value("out", {})};
    const TensorType plain = infer_node(graph_, node_)[0];
    if (c.has_curve) {
      node_.epilogue = curve_of_bytes(c.output);
    } else if (has_scale()) {
      inputs_.push_back(random_bytes(DType::u8, plain.extents(), random));
      node_.inputs.push_back(add_input(inputs_.back(), lanes));
      node_.epilogue = requantization(c.output);
    }
    TensorType out = plain;
    out.dtype = c.output;
    out.layout.channel_block = lanes_;
    graph_.value(node_.outputs[0]).type = out;
    graph_.outputs = node_.outputs;
    id_ = graph_.add_node(node_);
  }

  void make_small(std::mt19937& random) {
    auto* bytes = inputs_[0].mutable_data<uint8_t>();
    for (int64_t i = 0; i < inputs_[0].size(); ++i) {
      if (random() % static_cast<unsigned>(case_.large_of) != 0) bytes[i] %= 100;
    }
    inputs_[3].mutable_data<uint8_t>()[0] %= 33;
  }

  // Few are far above, too.
  void put_above(std::mt19937& random) {
    const uint8_t flip = case_.dtype == DType::i8 ? 0x80 : 0;
    auto* bytes = static_cast<uint8_t*>(inputs_[0].mutable_raw());
    for (int64_t i = 0; i < inputs_[0].size(); ++i) {
      const int most_above = random() % 50 == 0 ? 127 : 30;
      const int byte = 128 - case_.most_below + bytes[i] % (case_.most_below + most_above + 1);
      bytes[i] = static_cast<uint8_t>(byte ^ flip);
    }
    bytes[0] = static_cast<uint8_t>((128 - case_.most_below) ^ flip);
    *static_cast<uint8_t*>(inputs_[3].mutable_raw()) = static_cast<uint8_t>(0x80 ^ flip);
  }

  void check(Isa isa) {
    PackedWeights packed;
    FallbackPlans plans;
    const LoweredGraph lowered =
        lower_graph(graph_, {OpRegistry::builtin(), {isa, case_.threads}, packed, plans, nullptr});
    // Weights, too: nothing may be read or written beyond what is there.
    std::vector<std::unique_ptr<GuardedBytes>> memory;
    std::vector<void*> addresses;
    for (const Buffer& buffer : lowered.buffers) {
      memory.push_back(std::make_unique<GuardedBytes>(buffer.bytes));
      addresses.push_back(memory.back()->data());
      if (buffer.fixed) std::memcpy(addresses.back(), buffer.fixed, buffer.bytes);
    }
    for (const size_t slot : {size_t{0}, size_t{3}, inputs_.size() - 1}) {
      const ValueId id = node_.inputs[slot];
      if (id == ValueId::none || graph_.value(id).is_constant()) continue;
      write_value(addresses[static_cast<size_t>(lowered.of_value[index_of(id)])], graph_.value(id).type, inputs_[slot]);
    }
    for (const Step& step : lowered.steps) {
      ASSERT_NE(step.kernel, "reference");
      if (step.is_wanted(addresses.data())) kernels_ += step.kernel + "\n";
      testing::run_step(step, addresses.data());
    }
    compare(addresses[static_cast<size_t>(lowered.of_value[index_of(node_.outputs[0])])]);
  }

  const std::string& kernels() const { return kernels_; }

 private:
  bool has_scale() const { return case_.output != DType::i32; }  // else: the sums

  ValueId add_input(const Tensor& tensor, int block) {
    TensorType type = TensorType::of(tensor.dtype(), tensor.dims());
    type.layout.channel_block = block;
    graph_.inputs.push_back(graph_.add_value("v" + std::to_string(graph_.value_count()), type));
    return graph_.inputs.back();
  }

  void compare(const void* got) const {
    const Tensor expected = run_reference(graph_.node(id_), inputs_, {})[0];
    const std::vector<double> right = reals_of(expected);
    int64_t different = 0;
    for (int64_t i = 0; i < expected.size(); ++i) {
      const int64_t at = blocked_index(expected.dims(), lanes_, i);
      const double wanted = right[static_cast<size_t>(i)];
      if (case_.output == DType::f32) {
        ASSERT_NEAR(static_cast<const float*>(got)[at], wanted, 1e-4 * (1 + std::abs(wanted))) << "element " << i;
        continue;
      }
      if (case_.output == DType::i32) {
        ASSERT_EQ(static_cast<const int32_t*>(got)[at], wanted) << "element " << i;
        continue;
      }
      const int left =
          case_.output == DType::u8 ? static_cast<const uint8_t*>(got)[at] : static_cast<const int8_t*>(got)[at];
      // A tie may be rounded the other way in float32.
      ASSERT_NEAR(left, wanted, 1) << "element " << i;
      different += left != wanted;
    }
    EXPECT_LE(different, 1 + expected.size() / 200);
    if (kernels_.ends_with("table\n")) check_padding(static_cast<const uint8_t*>(got));
  }

  // Lanes past the channels are zero behind a look-up.
  void check_padding(const uint8_t* bytes) const {
    const Dims stored = graph_.value(node_.outputs[0]).type.storage_dims();
    const int64_t used = graph_.value(node_.outputs[0]).type.dims[1].extent % lanes_;
    int64_t pixels = 1;
    for (size_t axis = 2; axis + 1 < stored.size(); ++axis) pixels *= stored[axis];
    for (int64_t image = 0; used != 0 && image < stored[0]; ++image) {
      const uint8_t* last = bytes + ((image + 1) * stored[1] - 1) * pixels * lanes_;
      for (int64_t i = 0; i < pixels * lanes_; ++i) {
        if (i % lanes_ < used) continue;
        ASSERT_EQ(last[i], 0) << "lane " << i % lanes_ << " of image " << image;
      }
    }
  }

  const ConvCase case_;
  const int lanes_;
  Graph graph_;
  Node node_;
  NodeId id_ = NodeId::none;
  std::vector<Tensor> inputs_;
  std::string kernels_;  // of the steps that ran
};

void check_all(std::span<const ConvCase> cases) {
  std::mt19937 random(11);
  for (const ConvCase& c : cases) {
    for (const Isa isa : testing::int8_isas_here()) {
      SCOPED_TRACE(::testing::Message() << c << " " << name_of(isa));
      ConvRun(c, vector_lanes(isa), random).check(isa);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Int8Convolution, MatchesTheReference) {
  const ConvCase cases[] = {
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}},
      {.in = {2, 20, 7, 10}, .weights = {35, 20, 3, 3}, .pads = {1, 1, 1, 1}, .threads = 2},
      {.in = {1, 3, 24, 24}, .weights = {16, 3, 7, 7}, .pads = {3, 3, 3, 3}, .strides = {2, 2}},
      {.in = {1, 16, 9, 8}, .weights = {20, 16, 3, 3}, .pads = {1, 0, 2, 1}, .strides = {2, 1}, .dtype = DType::i8},
      {.in = {1, 33, 8, 8}, .weights = {17, 33, 3, 3}, .dilations = {2, 2}, .output = DType::f32},
      {.in = {2, 16, 6, 6}, .weights = {64, 16, 1, 1}, .strides = {2, 2}, .output = DType::i8, .threads = 2},
      {.in = {1, 16, 6, 6}, .weights = {20, 16, 3, 3}, .pads = {1, 1, 1, 1}, .has_weight_zeros = true},
      {.in = {1, 16, 6, 6}, .weights = {20, 16, 3, 3}, .pads = {1, 1, 1, 1}, .weight_dtype = DType::u8},
      {.in = {1, 24, 30}, .weights = {16, 24, 5}, .pads = {2, 2}},
      {.in = {1, 64, 14, 14}, .weights = {128, 64, 3, 3}, .pads = {1, 1, 1, 1}, .threads = 2},
      // Pixels of few channels end to end: groups cross their borders.
      {.in = {2, 3, 11, 37}, .weights = {24, 3, 7, 7}, .pads = {3, 3, 3, 3}, .strides = {2, 2}, .is_picture = true},
      {.in = {1, 3, 9, 35}, .weights = {16, 3, 3, 3}, .pads = {1, 0, 0, 1}, .dtype = DType::i8, .is_picture = true},
      {.in = {1, 3, 20, 18}, .weights = {40, 3, 5, 5}, .strides = {3, 3}, .is_picture = true, .is_dynamic = true},
      {.in = {2, 1, 12, 33}, .weights = {16, 1, 5, 5}, .pads = {2, 2, 2, 2}, .strides = {2, 2}, .is_picture = true},
      {.in = {1, 2, 12, 19}, .weights = {8, 2, 3, 4}, .pads = {1, 1, 1, 1}, .is_picture = true, .threads = 2},
      {.in = {1, 1, 7, 40}, .weights = {16, 1, 3, 3}, .dtype = DType::i8, .is_picture = true, .is_dynamic = true},
      {.in = {2, 3, 23, 24}, .weights = {16, 3, 7, 7}, .pads = {3, 3, 3, 3}, .strides = {2, 2}, .is_picture = true},
      {.in = {1, 1, 9, 30}, .weights = {20, 1, 3, 3}, .pads = {1, 0, 1, 1}, .dtype = DType::i8, .is_picture = true},
      {.in = {1, 6, 12, 9}, .weights = {16, 6, 3, 3}, .is_picture = true, .output = DType::i8},
      {.in = {1, 32, 7, 7}, .weights = {64, 32, 3, 3}, .pads = {1, 1, 1, 1}},
      {.in = {1, 256, 28, 30}, .weights = {24, 256, 1, 1}, .output = DType::f32},
      {.in = {1, 64, 28, 28}, .weights = {48, 64, 1, 1}, .threads = 2},
      {.in = {1, 20, 9, 9}, .weights = {16, 20, 3, 3}, .pads = {1, 1, 1, 1}, .is_dynamic = true},
      {.in = {1, 3, 9, 9},
       .weights = {16, 3, 3, 3},
       .pads = {1, 1, 1, 1},
       .dtype = DType::i8,
       .is_picture = true,
       .is_dynamic = true,
       .output = DType::f32},
      {.in = {2, 32, 30, 29}, .weights = {16, 32, 1, 1}, .strides = {2, 2}, .dtype = DType::i8},
      // Sums as they are.
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}, .output = DType::i32},
      {.in = {2, 20, 7, 10}, .weights = {35, 20, 3, 3}, .pads = {1, 1, 1, 1}, .output = DType::i32, .threads = 2},
      {.in = {1, 24, 30}, .weights = {16, 24, 5}, .has_weight_zeros = true, .is_dynamic = true, .output = DType::i32},
      {.in = {1, 64, 28, 28}, .weights = {64, 64, 3, 3}, .pads = {1, 1, 1, 1}, .output = DType::i32},
      // By Winograd's method.
      {.in = {1, 64, 28, 28}, .weights = {64, 64, 3, 3}, .pads = {1, 1, 1, 1}},
      {.in = {2, 64, 27, 25}, .weights = {60, 64, 3, 3}, .dtype = DType::i8, .output = DType::i8, .threads = 2},
      {.in = {1, 64, 20, 23}, .weights = {128, 64, 3, 3}, .pads = {1, 0, 1, 1}, .output = DType::f32},
      {.in = {1, 128, 15, 13}, .weights = {33, 128, 1, 1}, .has_weight_zeros = true, .output = DType::i8},
  };
  check_all(cases);
}

TEST(Int8Convolution, WeightsOfSevenBitsAreMultipliedAsBytes) {
  const std::vector<int64_t> around = {1, 1, 1, 1};
  const ConvCase cases[] = {
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}},
      {.in = {1, 16, 9, 8}, .weights = {20, 16, 3, 3}, .pads = {1, 0, 2, 1}, .strides = {2, 1}, .dtype = DType::i8},
      {.in = {2, 20, 7, 10}, .weights = {35, 20, 3, 5}, .pads = {1, 2, 1, 2}, .output = DType::i32, .threads = 2},
      {.in = {2, 3, 11, 37}, .weights = {24, 3, 7, 7}, .pads = {3, 3, 3, 3}, .strides = {2, 2}, .is_picture = true},
      {.in = {1, 1, 7, 40}, .weights = {16, 1, 3, 3}, .dtype = DType::i8, .is_picture = true, .is_dynamic = true},
      {.in = {1, 256, 28, 30}, .weights = {24, 256, 1, 1}, .output = DType::f32},
      {.in = {1, 33, 9, 8}, .weights = {33, 11, 3, 3}, .dilations = {2, 2}, .groups = 3},
      {.in = {1, 72, 10, 9}, .weights = {72, 24, 3, 3}, .pads = around, .groups = 3, .is_dynamic = true},
      {.in = {1, 24, 30}, .weights = {16, 24, 5}, .pads = {2, 2}, .dtype = DType::i8, .output = DType::i8},
  };
  std::mt19937 random(12);
  for (ConvCase c : cases) {
    c.has_seven_bits = true;
    for (const bool is_extreme : {false, true}) {
      c.is_extreme = is_extreme;
      SCOPED_TRACE(::testing::Message() << c);
      ConvRun run(c, vector_lanes(Isa::avx2), random);
      run.check(Isa::avx2);
      if (::testing::Test::HasFatalFailure()) return;
      EXPECT_NE(run.kernels().find("conv int8 u8s7"), std::string::npos) << run.kernels();
    }
  }
}

TEST(Int8Convolution, LargeBytesAreHalvedWhereMostAreSmall) {
  const std::vector<int64_t> around = {1, 1, 1, 1};
  const ConvCase cases[] = {
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}},
      {.in = {2, 24, 9, 8}, .weights = {20, 24, 3, 3}, .pads = {1, 0, 2, 1}, .strides = {2, 1}},
      {.in = {2, 20, 7, 10}, .weights = {35, 20, 3, 5}, .pads = {1, 2, 1, 2}, .output = DType::i32, .threads = 2},
      {.in = {1, 256, 28, 30}, .weights = {24, 256, 1, 1}, .output = DType::f32},
      {.in = {2, 64, 31, 30}, .weights = {64, 64, 1, 1}, .strides = {2, 2}, .threads = 2},
      {.in = {1, 64, 30, 29}, .weights = {48, 64, 3, 3}, .pads = around, .strides = {2, 2}, .has_curve = true},
      {.in = {1, 33, 9, 8}, .weights = {33, 11, 3, 3}, .dilations = {2, 2}, .groups = 3},
      {.in = {1, 72, 10, 9}, .weights = {72, 24, 3, 3}, .pads = around, .groups = 3},
      {.in = {1, 24, 30}, .weights = {16, 24, 5}, .pads = {2, 2}, .output = DType::i8},
  };
  std::mt19937 random(13);
  for (ConvCase c : cases) {
    for (const int large_of : {1, 10, 200}) {
      c.large_of = large_of;
      c.is_extreme = random() % 2 == 0;
      c.has_seven_bits = random() % 3 == 0;
      SCOPED_TRACE(::testing::Message() << c << " one of " << large_of);
      ConvRun run(c, vector_lanes(Isa::avx2), random);
      run.check(Isa::avx2);
      if (::testing::Test::HasFatalFailure()) return;
      EXPECT_NE(run.kernels().find("conv int8 u8s8_halved"), std::string::npos) << run.kernels();
    }
  }
}

// As SiLU gives them, quantized around 0.
TEST(Int8Convolution, BytesThatAreHardlyBelowTheirZeroPointAreHalved) {
  const std::vector<int64_t> around = {1, 1, 1, 1};
  const ConvCase cases[] = {
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}},
      {.in = {2, 24, 9, 8}, .weights = {20, 24, 3, 3}, .pads = {1, 0, 2, 1}, .strides = {2, 1}},
      {.in = {2, 16, 7, 10}, .weights = {35, 16, 3, 5}, .pads = {1, 2, 1, 2}, .output = DType::i32, .threads = 2},
      {.in = {1, 256, 28, 30}, .weights = {24, 256, 1, 1}, .output = DType::f32},
      {.in = {2, 64, 31, 30}, .weights = {64, 64, 1, 1}, .strides = {2, 2}, .threads = 2},
      {.in = {1, 72, 10, 9}, .weights = {72, 24, 3, 3}, .pads = around, .groups = 3},
      {.in = {1, 24, 30}, .weights = {16, 24, 5}, .pads = {2, 2}, .output = DType::i8},
  };
  std::mt19937 random(14);
  for (ConvCase c : cases) {
    for (const DType dtype : {DType::u8, DType::i8}) {
      for (const int most_below : {5, 32, 33, 128}) {
        c.dtype = dtype;
        c.most_below = most_below;
        SCOPED_TRACE(::testing::Message() << c << " at most " << most_below << " below");
        ConvRun run(c, vector_lanes(Isa::avx2), random);
        run.check(Isa::avx2);
        if (::testing::Test::HasFatalFailure()) return;
        EXPECT_EQ(run.kernels().find("conv int8 u8s8_halved") != std::string::npos, most_below <= 32) << run.kernels();
      }
    }
  }
}

TEST(Int8Convolution, LooksUpWhatFollowsAByte) {
  const std::vector<int64_t> around = {1, 1, 1, 1};
  ConvCase cases[] = {
      {.in = {1, 32, 9, 9}, .weights = {48, 32, 1, 1}},
      {.in = {2, 20, 7, 10}, .weights = {35, 20, 3, 3}, .pads = around, .output = DType::i8, .threads = 2},
      {.in = {1, 256, 28, 30}, .weights = {24, 256, 1, 1}, .dtype = DType::i8},
      {.in = {1, 3, 9, 9}, .weights = {16, 3, 3, 3}, .pads = around, .is_picture = true, .is_dynamic = true},
      {.in = {1, 64, 28, 27}, .weights = {64, 64, 3, 3}, .pads = around, .output = DType::i8},
      {.in = {1, 40, 13, 15}, .weights = {40, 1, 3, 3}, .pads = around, .groups = 40},
      {.in = {1, 24, 9, 17}, .weights = {24, 1, 5, 5}, .groups = 24, .weight_dtype = DType::u8, .output = DType::i8},
  };
  for (ConvCase& c : cases) c.has_curve = true;
  check_all(cases);
}

// As the generated code's do: 70,000 * 255 * 127 is 2^32 - 2,028,017,296.
TEST(Int8Convolution, SumsOfReferencesWrapBeyond32Bits) {
  constexpr int64_t kChannels = 70000;
  Tensor x(DType::u8, {1, kChannels, 1, 1}), w(DType::i8, {1, kChannels, 1, 1});
  std::memset(x.mutable_raw(), 255, x.bytes());
  std::memset(w.mutable_raw(), 127, w.bytes());
  const Tensor half = Tensor::scalar<float>(0.5f), large = Tensor::scalar<float>(1e7f);
  const Tensor zero_x = testing::tensor<uint8_t>({}, {0}), zero_w = testing::tensor<int8_t>({}, {0});
  testing::OpTester requantized("QLinearConv", 10), scaled("QuantizedConv", 1, "lathe");
  requantized.input(x).input(half).input(zero_x).input(w).input(half).input(zero_w).input(large);
  requantized.input(testing::tensor<uint8_t>({}, {100}));
  scaled.input(x).input(w).input(testing::tensor<float>({1}, {0.5f}));
  EXPECT_EQ(reals_of(requantized.result())[0], 100 - 51);  // 2.03e9 / 4e7: 50.7
  EXPECT_EQ(reals_of(scaled.result())[0], -1014008648.0F);
}

TEST(Int8Convolution, ReadsTheChannelsOfItsGroup) {
  const std::vector<int64_t> around = {1, 1, 1, 1};
  const ConvCase cases[] = {
      {.in = {1, 48, 28, 30}, .weights = {48, 8, 3, 3}, .pads = around, .groups = 6},
      {.in = {2, 104, 15, 14}, .weights = {104, 8, 3, 3}, .pads = around, .strides = {2, 2}, .groups = 13},
      {.in = {1, 64, 14, 14}, .weights = {64, 4, 3, 3}, .pads = around, .groups = 16, .dtype = DType::i8},
      {.in = {1, 30, 9, 11}, .weights = {30, 6, 3, 3}, .pads = around, .groups = 5, .threads = 2},
      {.in = {1, 72, 10, 9}, .weights = {72, 24, 3, 3}, .pads = around, .groups = 3, .threads = 2},
      {.in = {1, 14, 9, 9}, .weights = {21, 2, 3, 3}, .groups = 7, .is_picture = true, .output = DType::f32},
      {.in = {1, 6, 12, 10}, .weights = {8, 3, 3, 3}, .pads = around, .groups = 2, .is_picture = true},
      {.in = {1, 15, 9, 9}, .weights = {20, 3, 3, 3}, .pads = around, .groups = 5, .has_weight_zeros = true},
      {.in = {2, 128, 8, 8}, .weights = {192, 64, 1, 1}, .groups = 2, .threads = 2},
      {.in = {1, 96, 7, 7}, .weights = {96, 32, 3, 3}, .pads = around, .groups = 3, .output = DType::i8},
      {.in = {1, 256, 9, 9}, .weights = {64, 128, 3, 3}, .pads = around, .groups = 2},
      {.in = {1, 20, 40}, .weights = {30, 2, 5}, .pads = {2, 2}, .groups = 10, .is_dynamic = true},
      {.in = {1, 33, 9, 8}, .weights = {33, 11, 3, 3}, .dilations = {2, 2}, .groups = 3, .weight_dtype = DType::u8},
  };
  check_all(cases);
}

TEST(Int8Convolution, ReadsItsOwnChannel) {
  const std::vector<int64_t> around = {1, 1, 1, 1}, wide = {2, 2, 2, 2};
  const ConvCase cases[] = {
      {.in = {1, 32, 14, 14}, .weights = {32, 1, 3, 3}, .pads = around, .groups = 32},
      {.in = {2, 37, 15, 13}, .weights = {37, 1, 3, 3}, .pads = around, .strides = {2, 2}, .groups = 37},
      {.in = {1, 24, 9, 30}, .weights = {24, 1, 3, 3}, .pads = around, .groups = 24, .dtype = DType::i8},
      {.in = {1, 24, 30, 9}, .weights = {24, 1, 3, 3}, .pads = {0, 1, 2, 0}, .groups = 24, .weight_dtype = DType::u8},
      {.in = {1, 20, 17, 19}, .weights = {20, 1, 5, 5}, .pads = wide, .groups = 20, .output = DType::i8},
      {.in = {1, 40, 21, 16}, .weights = {40, 1, 5, 5}, .pads = wide, .strides = {2, 2}, .groups = 40, .threads = 2},
      {.in = {1, 16, 12, 12}, .weights = {16, 1, 3, 3}, .pads = wide, .dilations = {2, 2}, .groups = 16},
      {.in = {1, 16, 13, 20}, .weights = {16, 1, 3, 3}, .dilations = {1, 3}, .groups = 16, .dtype = DType::i8},
      {.in = {1, 16, 12, 15}, .weights = {16, 1, 2, 4}, .strides = {3, 1}, .groups = 16, .output = DType::i32},
      {.in = {1, 16, 12, 15}, .weights = {16, 1, 4, 2}, .strides = {1, 3}, .groups = 16, .has_weight_zeros = true},
      {.in = {3, 8, 7, 7}, .weights = {8, 1, 7, 7}, .pads = {3, 3, 3, 3}, .groups = 8, .output = DType::f32},
      {.in = {1, 5, 1, 1}, .weights = {5, 1, 3, 3}, .pads = around, .groups = 5, .is_picture = true},
      {.in = {1, 18, 2, 3}, .weights = {18, 1, 5, 3}, .pads = wide, .groups = 18, .is_picture = true},
      {.in = {1, 64, 28, 28}, .weights = {64, 1, 3, 3}, .pads = around, .groups = 64, .threads = 2},
      {.in = {4, 48, 9, 9}, .weights = {48, 1, 3, 3}, .pads = around, .groups = 48, .threads = 2},
      {.in = {1, 20, 11, 10}, .weights = {20, 1, 3, 3}, .pads = around, .groups = 20, .is_dynamic = true},
      {.in = {1, 20, 11, 10},
       .weights = {20, 1, 3, 3},
       .pads = around,
       .groups = 20,
       .dtype = DType::i8,
       .is_dynamic = true,
       .output = DType::i32},
      {.in = {1, 33, 9, 8},
       .weights = {33, 1, 3, 3},
       .pads = around,
       .groups = 33,
       .dtype = DType::i8,
       .weight_dtype = DType::u8,
       .has_weight_zeros = true,
       .is_dynamic = true},
      {.in = {2, 20, 40}, .weights = {20, 1, 5}, .pads = {2, 2}, .groups = 20},
      {.in = {1, 20, 40}, .weights = {20, 1, 1}, .groups = 20, .is_picture = true},
      {.in = {1, 16, 40, 37}, .weights = {16, 1, 11, 13}, .pads = {5, 6, 5, 6}, .groups = 16},
      {.in = {1, 16, 90, 37}, .weights = {16, 1, 3, 3}, .dilations = {40, 17}, .groups = 16},
  };
  check_all(cases);
}

// Everything but the shapes.
void choose_types(ConvCase& c, std::mt19937& random) {
  c.dtype = random() % 2 == 0 ? DType::u8 : DType::i8;
  c.weight_dtype = random() % 3 == 0 ? DType::u8 : DType::i8;
  c.has_weight_zeros = random() % 4 == 0;
  c.is_dynamic = random() % 4 == 0;
  c.is_extreme = random() % 3 == 0;
  if (c.dtype == DType::u8 && random() % 2 == 0) c.large_of = 1 + static_cast<int>(random() % 50);
  constexpr DType kOutputs[] = {DType::u8, DType::i8, DType::f32, DType::i32};
  c.output = kOutputs[random() % 4];
  c.threads = 1 + static_cast<int>(random() % 2);
}

TEST(Int8Convolution, SumsExactlyWhateverTheShape) {
  std::mt19937 random(23);
  const auto one_of = [&](int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random); };
  std::vector<ConvCase> cases;
  while (cases.size() < 80) {
    ConvCase c;
    const int64_t channels = one_of(0, 3) == 0 ? one_of(8, 90) : 4 * one_of(2, 30);
    const bool is_pointwise = one_of(0, 1) == 0;
    c.weights = {one_of(1, 90), channels, is_pointwise ? 1 : one_of(1, 3), is_pointwise ? 1 : one_of(1, 4)};
    c.in = {one_of(1, 3), channels, one_of(4, 24), one_of(4, 24)};
    c.strides = {one_of(1, 3), one_of(1, 3)};
    if (!is_pointwise || one_of(0, 7) == 0) c.pads = {one_of(0, 1), one_of(0, 1), one_of(0, 1), one_of(0, 1)};
    choose_types(c, random);
    cases.push_back(c);
  }
  check_all(cases);
}

TEST(Int8Convolution, ReadsItsOwnChannelWhateverTheShape) {
  std::mt19937 random(5);
  const auto one_of = [&](int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random); };
  std::vector<ConvCase> cases;
  while (cases.size() < 60) {
    ConvCase c;
    const int64_t channels = one_of(2, 50);
    c.groups = channels;
    c.weights = {channels, 1, one_of(1, 6), one_of(1, 6)};
    c.in = {one_of(1, 3), channels, one_of(1, 24), one_of(1, 24)};
    c.pads = {one_of(0, 3), one_of(0, 3), one_of(0, 3), one_of(0, 3)};
    c.strides = {one_of(1, 3), one_of(1, 3)};
    c.dilations = {one_of(1, 3), one_of(1, 3)};
    const auto fits = [&](size_t axis) {
      return c.in[2 + axis] + c.pads[axis] + c.pads[2 + axis] > c.dilations[axis] * (c.weights[2 + axis] - 1);
    };
    if (!fits(0) || !fits(1)) continue;
    choose_types(c, random);
    c.is_picture = one_of(0, 3) == 0;
    cases.push_back(c);
  }
  check_all(cases);
}

}  // namespace
}  // namespace lathe
