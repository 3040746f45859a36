// BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot.
#include <concepts>

#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

// Counts of the type's width and more shift everything out; signed values shift arithmetically to the right.
struct BitShift {
  explicit BitShift(const Node& node) : is_left(node.attributes.get_string("direction", "") == "LEFT") {}
  template <std::integral C>
  C operator()(C x, C count) const {
    constexpr auto kBits = static_cast<C>(sizeof(C) * 8 - 1);
    const bool is_out = count < 0 || count > kBits;
    if (is_left) return is_out ? C{0} : static_cast<C>(static_cast<uint64_t>(x) << count);
    return static_cast<C>(x >> (is_out ? kBits : count)) * (is_out && std::is_unsigned_v<C> ? C{0} : C{1});
  }
  bool is_left;
};
struct BitwiseAnd {
  template <std::integral C>
  C operator()(C a, C b) const {
    return static_cast<C>(a & b);
  }
};
struct BitwiseOr {
  template <std::integral C>
  C operator()(C a, C b) const {
    return static_cast<C>(a | b);
  }
};
struct BitwiseXor {
  template <std::integral C>
  C operator()(C a, C b) const {
    return static_cast<C>(a ^ b);
  }
};
struct BitwiseNot {
  template <std::integral C>
  C operator()(C a) const {
    return static_cast<C>(~a);
  }
};

void infer_shift(InferContext& context) {
  const std::string direction = context.node.attributes.get_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    context.fail("direction is '" + direction + "', expected LEFT or RIGHT");
  infer_broadcast(context);
}

template <class F>
bool lower(LowerContext& context) {
  return lower_binary_rows(context, functor_for<F>(context.node));
}

bool lower_not(LowerContext& context) { return lower_unary_rows(context, BitwiseNot{}); }

template <class F>
OpDef binary(std::string_view name) {
  return {.schema = {.name = name,
                     .since = 18,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .infer = infer_broadcast,
                     .reference = reference_binary<F, kIntegers>},
          .lower = lower<F>};
}

}  // namespace

std::vector<OpDef> bitwise_ops() {
  return {{.schema = {.name = "BitShift",
                      .since = 11,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"direction", AttributeSpec::Kind::string, true}},
                      .infer = infer_shift,
                      .reference = reference_binary<BitShift, kIntegers>},
           .lower = lower<BitShift>},
          binary<BitwiseAnd>("BitwiseAnd"),
          binary<BitwiseOr>("BitwiseOr"),
          binary<BitwiseXor>("BitwiseXor"),
          {.schema = {.name = "BitwiseNot",
                      .since = 18,
                      .infer = infer_same,
                      .reference = reference_unary<BitwiseNot, kIntegers>},
           .lower = lower_not}};
}

}  // namespace lathe::ops
