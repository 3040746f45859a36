// BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot.
#include <concepts>
#include <type_traits>

#include "ops/copy/index_check.h"
#include "ops/numbers.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/row_loops.h"

namespace lathe::ops {
namespace {

// Counts of the type's width and more shift everything out; signed values shift arithmetically to the right. Without a
// branch, in lanes of 32 bits at least: so that a loop of these becomes vector code.
template <class C>
using Lane = std::conditional_t<sizeof(C) < 4, uint32_t, std::make_unsigned_t<C>>;
template <class C>
constexpr auto kTopBit = static_cast<std::make_unsigned_t<C>>(8 * sizeof(C) - 1);

struct ShiftLeft {
  template <std::integral C>
  C operator()(C x, C count) const {
    const auto bits = static_cast<std::make_unsigned_t<C>>(count);  // negative ones are too many
    const auto shifted = static_cast<C>(static_cast<Lane<C>>(x) << (bits & kTopBit<C>));
    return bits > kTopBit<C> ? C{0} : shifted;
  }
};
struct ShiftRight {
  template <std::integral C>
  C operator()(C x, C count) const {
    const auto bits = static_cast<std::make_unsigned_t<C>>(count);
    if constexpr (std::is_signed_v<C>) {
      return static_cast<C>(x >> (bits > kTopBit<C> ? kTopBit<C> : bits));
    } else {
      const auto shifted = static_cast<C>(static_cast<Lane<C>>(x) >> (bits & kTopBit<C>));
      return bits > kTopBit<C> ? C{0} : shifted;
    }
  }
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

bool shifts_left(const Node& node) { return node.attributes.get_string("direction", "") == "LEFT"; }

void reference_shift(ReferenceContext& context) {
  shifts_left(context.node) ? reference_binary<ShiftLeft, kIntegers>(context)
                            : reference_binary<ShiftRight, kIntegers>(context);
}

// Bits are alike in types of a width; only a shift to the right knows signs.
template <class F>
bool lower_bits(LowerContext& context) {
  const DType dtype = context.input_type(0).dtype;
  if (context.input_count() != 2 || context.input_type(1).dtype != dtype || !is_integer(dtype)) return false;
  const auto rows = [&]<class T>() {
    return add_row_step(
        context, [](const RowOperands& row) { binary_row<T, T>(row, F{}); }, "rows");
  };
  if (std::is_same_v<F, ShiftRight> && is_signed(dtype)) {
    bool is_done = false;
    visit_native(dtype, [&]<class T>() {
      if constexpr (std::signed_integral<T>) is_done = rows.template operator()<T>();
    });
    return is_done;
  }
  bool is_done = false;
  const bool has_width = bits_of(dtype) % 8 == 0 &&
                         visit_width(bits_of(dtype) / 8, [&]<class T>() { is_done = rows.template operator()<T>(); });
  return has_width && is_done;
}

bool lower_shift(LowerContext& context) {
  return shifts_left(context.node) ? lower_bits<ShiftLeft>(context) : lower_bits<ShiftRight>(context);
}

bool lower_not(LowerContext& context) {
  const DType dtype = context.input_type(0).dtype;
  bool is_done = false;
  if (!is_integer(dtype) || bits_of(dtype) % 8 != 0) return false;
  visit_width(bits_of(dtype) / 8, [&]<class T>() {
    is_done = add_row_step(
        context, [](const RowOperands& row) { unary_row<T, T>(row, BitwiseNot{}); }, "rows");
  });
  return is_done;
}

template <class F>
OpDef binary(std::string_view name) {
  return {.schema = {.name = name,
                     .since = 18,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .infer = infer_broadcast,
                     .reference = reference_binary<F, kIntegers>},
          .lower = lower_bits<F>};
}

}  // namespace

std::vector<OpDef> bitwise_ops() {
  return {{.schema = {.name = "BitShift",
                      .since = 11,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"direction", AttributeSpec::Kind::string, true}},
                      .infer = infer_shift,
                      .reference = reference_shift},
           .lower = lower_shift},
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
