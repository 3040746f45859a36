// Whole small models: what all passes and generated code make of them, against the plain reference (optimization level
// 0 lowers each node of the file; run_reference_graph is the oracle).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/runtime/isa_runner.h"
#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

struct Setting {
  Isa isa = Isa::avx2;
  int threads = 1;
  int level = 99;
};

std::vector<Tensor> run_with(const testing::ModelBuilder& builder, const std::vector<Tensor>& inputs,
                             const Setting& setting) {
  const Model model = testing::imported(builder);
  const auto context = testing::context_for({setting.isa, setting.threads}, setting.level);
  GraphRunner runner(std::make_unique<Graph>(*model.graph), context);
  std::vector<Tensor> outputs(runner.graph().outputs.size());
  runner.run(inputs, outputs, nullptr);
  return outputs;
}

std::vector<Tensor> reference(const testing::ModelBuilder& builder, const std::vector<Tensor>& inputs) {
  return run_reference_graph(*testing::imported(builder).graph, inputs);
}

// float32 sums of up to some hundred terms, in another order, through some ten layers: a few hundred roundings of the
// largest value.
void expect_close(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.dims(), want.dims());
  double largest = 0, error = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got.data<float>()[i])) << "element " << i;
    largest = std::max(largest, std::abs(static_cast<double>(want.data<float>()[i])));
    error = std::max(error, std::abs(static_cast<double>(got.data<float>()[i]) - want.data<float>()[i]));
  }
  EXPECT_LE(error, 300 * 6e-8 * largest);
}

struct WholeModel {
  const char* name;
  testing::ModelBuilder (*build)();
  std::vector<std::vector<Dims>> shapes;  // several sets of input shapes
};

const WholeModel kModels[] = {
    {"ConvNet", [] { return testing::conv_net(); }, {{{1, 3, 16, 16}}, {{3, 3, 23, 38}}}},
    {"TransformerBlock",
     [] { return testing::transformer_block(); },
     {{{1, 7, 48}, {1, 1, 1, 7}}, {{2, 20, 48}, {2, 1, 1, 20}}}},
    {"WideTransformer", [] { return testing::transformer_block(96, 3); }, {{{2, 33, 96}, {2, 1, 1, 33}}}},
    {"RecurrentNet", [] { return testing::recurrent_net(); }, {{{9, 1, 20}}, {{5, 3, 20}}}},
    {"Perceptron", [] { return testing::perceptron(); }, {{{1, 24}}, {{65, 24}}}},
};

struct Case {
  const WholeModel* model;
  Setting setting;
};

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Setting& setting = info.param.setting;
  return std::string(info.param.model->name) + "_" + std::string(name_of(setting.isa)) + "_" +
         std::to_string(setting.threads) + "threads_level" + std::to_string(setting.level);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const WholeModel& model : kModels)
    for (Isa isa : {Isa::avx2, Isa::avx512})
      for (int threads : {1, 2})
        for (int level : {0, 1, 2, 99}) cases.push_back({&model, {isa, threads, level}});
  return cases;
}

std::vector<Tensor> inputs_of(const std::vector<Dims>& shapes) {
  std::vector<Tensor> inputs;
  for (const Dims& dims : shapes)
    inputs.push_back(testing::random_input(dims, 5 + static_cast<unsigned>(inputs.size())));
  return inputs;
}

class WholeModels : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().setting.isa > usable_isa()) GTEST_SKIP() << "this CPU lacks " << name_of(GetParam().setting.isa);
  }
};

TEST_P(WholeModels, ComputeWhatTheReferenceComputes) {
  const auto& [model, setting] = GetParam();
  for (const std::vector<Dims>& shapes : model->shapes) {
    const std::vector<Tensor> inputs = inputs_of(shapes);
    const std::vector<Tensor> got = run_with(model->build(), inputs, setting);
    const std::vector<Tensor> want = reference(model->build(), inputs);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) expect_close(got[i], want[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WholeModels, ::testing::ValuesIn(all_cases()), name_of_case);

TEST(WholeModels, GiveTheSameBitsWithOneAndWithTwoThreads) {
  for (const WholeModel& model : kModels) {
    const std::vector<Tensor> inputs = inputs_of(model.shapes.back());
    const Tensor one = run_with(model.build(), inputs, {usable_isa(), 1, 99})[0];
    const Tensor two = run_with(model.build(), inputs, {usable_isa(), 2, 99})[0];
    ASSERT_EQ(one.bytes(), two.bytes());
    EXPECT_EQ(std::memcmp(one.raw(), two.raw(), one.bytes()), 0) << model.name;
  }
}

}  // namespace
}  // namespace lathe
