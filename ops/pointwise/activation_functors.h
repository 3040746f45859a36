#pragma once
// The activation functions as functors for the references of ops/pointwise/elementwise.h, with their attributes'
// defaults.
#include <cmath>
#include <type_traits>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe::functors {

struct Relu {
  template <class C>
  C operator()(C x) const {
    return x < C{0} ? C{0} : x;
  }
};

struct LeakyRelu {
  explicit LeakyRelu(const Node& node) : alpha(node.attributes.get_float("alpha", 0.01F)) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? alpha * x : x;
  }
  float alpha;
};

struct PRelu {
  template <class C>
  C operator()(C x, C slope) const {
    if constexpr (std::is_integral_v<C>)
      return x < C{0} ? static_cast<C>(static_cast<uint64_t>(x) * static_cast<uint64_t>(slope)) : x;
    else
      return x < 0 ? x * slope : x;
  }
};

struct ThresholdedRelu {
  explicit ThresholdedRelu(const Node& node) : alpha(node.attributes.get_float("alpha", 1)) {}
  template <class C>
  C operator()(C x) const {
    return x > alpha ? x : (std::isnan(x) ? x : 0);
  }
  float alpha;
};

struct Elu {
  explicit Elu(const Node& node) : alpha(node.attributes.get_float("alpha", 1)) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? alpha * std::expm1(x) : x;
  }
  float alpha;
};

struct Selu {
  explicit Selu(const Node& node)
      : alpha(node.attributes.get_float("alpha", node.version < 6 ? 1.6732F : 1.67326319F)),
        gamma(node.attributes.get_float("gamma", node.version < 6 ? 1.0507F : 1.05070102F)) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? gamma * (alpha * std::expm1(x)) : gamma * x;
  }
  float alpha, gamma;
};

struct Celu {
  explicit Celu(const Node& node) : alpha(node.attributes.get_float("alpha", 1)) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? alpha * std::expm1(x / alpha) : x;
  }
  float alpha;
};

struct Sigmoid {
  template <class C>
  C operator()(C x) const {
    return 1 / (1 + std::exp(-x));
  }
};

struct Tanh {
  template <class C>
  C operator()(C x) const {
    return std::tanh(x);
  }
};

struct HardSigmoid {
  explicit HardSigmoid(const Node& node)
      : alpha(node.attributes.get_float("alpha", 0.2F)), beta(node.attributes.get_float("beta", 0.5F)) {}
  template <class C>
  C operator()(C x) const {
    const C value = alpha * x + beta;
    return value < 0 ? 0 : (value > 1 ? 1 : value);
  }
  float alpha, beta;
};

struct HardSwish {
  template <class C>
  C operator()(C x) const {
    const C gate = x / 6 + C{0.5};
    return x * (gate < 0 ? 0 : (gate > 1 ? 1 : gate));
  }
};

struct Softplus {
  template <class C>
  C operator()(C x) const {
    return (x > 0 ? x : (std::isnan(x) ? x : 0)) + std::log1p(std::exp(-std::fabs(x)));
  }
};

struct Softsign {
  template <class C>
  C operator()(C x) const {
    return x / (1 + std::fabs(x));
  }
};

struct GeluErf {
  template <class C>
  C operator()(C x) const {
    return C{0.5} * x * (1 + std::erf(x * C(0.70710678118654752)));
  }
};

struct GeluTanh {
  template <class C>
  C operator()(C x) const {
    return C{0.5} * x * (1 + std::tanh(C(0.79788456080286536) * (x + C(0.044715) * x * x * x)));
  }
};

struct Gelu {
  explicit Gelu(const Node& node) : is_tanh(node.attributes.get_string("approximate", "none") == "tanh") {}
  template <class C>
  C operator()(C x) const {
    return is_tanh ? GeluTanh{}(x) : GeluErf{}(x);
  }
  bool is_tanh;
};

struct Mish {
  template <class C>
  C operator()(C x) const {
    return x * std::tanh(Softplus{}(x));
  }
};

struct Swish {
  explicit Swish(const Node& node) : alpha(node.attributes.get_float("alpha", 1)) {}
  template <class C>
  C operator()(C x) const {
    return x / (1 + std::exp(-alpha * x));
  }
  float alpha;
};

struct QuickGelu {
  explicit QuickGelu(const Node& node) : alpha(node.attributes.get_float("alpha", 1.702F)) {}
  template <class C>
  C operator()(C x) const {
    return x / (1 + std::exp(-alpha * x));
  }
  float alpha;
};

struct Shrink {
  explicit Shrink(const Node& node)
      : bias(node.attributes.get_float("bias", 0)), lambd(node.attributes.get_float("lambd", 0.5F)) {}
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) {
      const auto wide = static_cast<double>(x);
      const double shrunk = wide < -lambd ? wide + bias : (wide > lambd ? wide - bias : 0);
      return std::fabs(shrunk) < 9.2e18 ? static_cast<C>(static_cast<int64_t>(shrunk)) : x;
    } else {
      return x < -lambd ? x + bias : (x > lambd ? x - bias : 0);
    }
  }
  float bias, lambd;
};

template <class F>
struct OfSum {
  template <class C>
  C operator()(C a, C b) const {
    return F{}(a + b);
  }
};

}  // namespace lathe::functors
