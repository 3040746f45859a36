// ai.onnx.preview.training's Gradient against differences of the function itself, in float64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/model_builder.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ModelBuilder;

constexpr const char* kTraining = "ai.onnx.preview.training";

struct Function {
  const char* name;
  Dims a, b;
  std::function<std::string(ModelBuilder&, const std::string& a, const std::string& b)> make;
  friend std::ostream& operator<<(std::ostream& out, const Function& f) { return out << f.name; }
};

// Elements in [0.5, 1.5], where every function of the table is smooth.
Tensor positive(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0.5, 1.5);
  Tensor tensor(DType::f64, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<double>()[i] = uniform(random);
  return tensor;
}

double sum_of(const Tensor& tensor) {
  double sum = 0;
  for (const double x : tensor.elements<double>()) sum += x;
  return sum;
}

std::vector<testing::Extent> extents(const Dims& dims) { return {dims.begin(), dims.end()}; }

Session load(const ModelBuilder& model, int level) {
  const std::string bytes = model.bytes(18);
  return Session::load(std::as_bytes(std::span(bytes)), "", {.threads = 1, .optimization_level = level});
}

class Gradient : public ::testing::TestWithParam<Function> {};

TEST_P(Gradient, IsTheSlopeOfTheSum) {
  const Function& f = GetParam();
  ModelBuilder model;
  const std::string a = model.input("a", extents(f.a), DType::f64), b = model.input("b", extents(f.b), DType::f64);
  // Weighted, or the gradient of a mean or a Softmax could be all alike.
  const std::string y = model.node("Sin", {f.make(model, a, b)});
  model.output(y, DType::f64);
  const auto gradient =
      model.node("Gradient", {a, b}, 2).with_strings("xs", {a, b}).with("y", y.c_str()).of_domain(kTraining);
  model.output(gradient.result(0), DType::f64);
  model.output(gradient.result(1), DType::f64);
  const std::vector<Tensor> at{positive(f.a, 1), positive(f.b, 2)};
  for (const int level : {0, 99}) {
    const Session session = load(model, level);
    const std::vector<Tensor> results = session.run(at);
    for (size_t input = 0; input < 2; ++input) {
      ASSERT_EQ(results[1 + input].dims(), at[input].dims());
      for (int64_t i = 0; i < at[input].size(); ++i) {
        constexpr double kStep = 1e-5;
        const auto moved = [&](double by) {
          std::vector<Tensor> inputs{at[0].clone(), at[1].clone()};
          inputs[input].mutable_data<double>()[i] += by;
          return sum_of(session.run(inputs)[0]);
        };
        const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
        ASSERT_NEAR(results[1 + input].data<double>()[i], slope, 1e-7)
            << "input " << input << ", element " << i << ", level " << level;
      }
    }
  }
}

// One operator of one variable, plus b.
Function unary(const char* op) {
  return {op, {2, 3}, {3}, [op](ModelBuilder& model, const std::string& a, const std::string& b) -> std::string {
            return model.node("Add", {model.node(op, {a}), b});
          }};
}
Function binary(const char* op, Dims a, Dims b) {
  return {op, std::move(a), std::move(b),
          [op](ModelBuilder& model, const std::string& x, const std::string& y) -> std::string {
            return model.node(op, {x, y});
          }};
}

INSTANTIATE_TEST_SUITE_P(OneVariable, Gradient,
                         ::testing::Values(unary("Abs"), unary("Cos"), unary("Erf"), unary("Exp"), unary("Identity"),
                                           unary("Log"), unary("Neg"), unary("Reciprocal"), unary("Relu"),
                                           unary("Sigmoid"), unary("Sin"), unary("Softmax"), unary("Softplus"),
                                           unary("Sqrt"), unary("Tanh")));

INSTANTIATE_TEST_SUITE_P(
    TwoVariables, Gradient,
    ::testing::Values(
        binary("Add", {2, 3}, {2, 1}), binary("Sub", {3}, {2, 3}), binary("Mul", {2, 1, 3}, {4, 1}),
        binary("Div", {2, 3}, {3}), binary("Pow", {2, 3}, {2, 3}), binary("Sum", {2, 3}, {1}),
        binary("MatMul", {2, 2, 3}, {3, 4}), binary("MatMul", {1, 2, 3}, {5, 3, 2}),
        Function{"shapes",
                 {2, 3},
                 {3, 2},
                 [](ModelBuilder& m, const std::string& a, const std::string& b) -> std::string {
                   const std::string turned = m.node("Transpose", {a}).with("perm", {1, 0});
                   const std::string flat = m.node("Flatten", {m.node("Mul", {turned, b})}).with("axis", int64_t{0});
                   const std::string row = m.node("Squeeze", {flat, m.longs({0})});
                   return m.node("Unsqueeze", {m.node("Reshape", {row, m.longs({2, 3})}), m.longs({1})});
                 }},
        Function{"reductions",
                 {2, 3, 4},
                 {2, 3},
                 [](ModelBuilder& m, const std::string& a, const std::string& b) -> std::string {
                   const std::string mean = m.node("ReduceMean", {a, m.longs({-1})}).with("keepdims", int64_t{0});
                   const std::string sum = m.node("ReduceSum", {m.node("Mul", {mean, b}), m.longs({0})});
                   return m.node("Mul", {sum, m.node("Expand", {b, m.longs({4, 2, 3})})});
                 }},
        Function{
            "gemm",
            {3, 2},
            {3, 4},
            [](ModelBuilder& m, const std::string& a, const std::string& b) -> std::string {
              const std::string both = m.node("Gemm", {a, b}).with("transA", 1).with_float("alpha", 0.5F);
              return m.node("Gemm", {both, both, m.node("ReduceSum", {a})}).with("transB", 1).with_float("beta", 2);
            }},
        Function{"choice", {2, 3}, {3}, [](ModelBuilder& m, const std::string& a, const std::string& b) -> std::string {
                   const std::string doubled = m.node("Add", {b, b});
                   return m.node("Where", {m.node("Greater", {a, b}), m.node("Mul", {a, a}), doubled});
                 }}));

TEST(GradientOperator, TakesOtherPlacesThanTheGraphs) {
  ModelBuilder model;
  const std::string a = model.input("a", {2}), b = model.input("b", {2}), other = model.input("other", {2});
  const std::string y = model.node("Mul", {model.node("Mul", {a, a}), b});
  model.output(y);
  // d(a a b)/da at a = other
  model.output(model.node("Gradient", {other, b})
                   .with_strings("xs", {a})
                   .with_strings("zs", {b})
                   .with("y", y.c_str())
                   .of_domain(kTraining));
  const std::vector<Tensor> results = load(model, 99).run(std::vector<Tensor>{
      Tensor::from<float>({2}, {1, 2}), Tensor::from<float>({2}, {3, 4}), Tensor::from<float>({2}, {10, 20})});
  EXPECT_THAT(results[0].elements<float>(), ::testing::ElementsAre(3, 16));
  EXPECT_THAT(results[1].elements<float>(), ::testing::ElementsAre(60, 160));
}

TEST(GradientOperator, NamesWhatHasNoDerivative) {
  ModelBuilder model;
  const std::string a = model.input("a", {2, 3});
  const std::string y = model.node("CumSum", {a, model.weight(Tensor::scalar<int64_t>(0))});
  model.output(y);
  model.output(model.node("Gradient", {a}).with_strings("xs", {a}).with("y", y.c_str()).of_domain(kTraining));
  try {
    load(model, 99);
    FAIL() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'CumSum'"), HasSubstr("Gradient")));
  }
}

}  // namespace
}  // namespace lathe
