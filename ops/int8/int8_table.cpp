#include "ops/int8/int8_table.h"

#include <cmath>

#include "jit/kernels/common/int8_store.h"
#include "ops/int8/int8_chains.h"

namespace lathe {
namespace {

constexpr int kBytes = 256;

// The node is clamp(round_even(x) + constant) to the range of bytes of this type.
bool is_quantization(const Expression& e, int index, DType dtype) {
  const FloatRange range = stored_range(dtype);
  bool has_low = false, has_high = false;
  for (;;) {
    const ExprNode& node = e.nodes[static_cast<size_t>(index)];
    if (node.op != ExprOp::min && node.op != ExprOp::max) break;
    const bool is_first = is_constant(e, node.a);
    if (!is_first && !is_constant(e, node.b)) return false;
    const float bound = constant_at(e, is_first ? node.a : node.b);
    const bool is_high = node.op == ExprOp::min;
    if (bound != (is_high ? range.high : range.low)) return false;
    (is_high ? has_high : has_low) = true;
    index = is_first ? node.b : node.a;
  }
  const ExprNode& sum = e.nodes[static_cast<size_t>(index)];
  if (sum.op == ExprOp::add) {
    const bool is_first = is_constant(e, sum.a);
    if (!is_first && !is_constant(e, sum.b)) return false;
    const float zero = constant_at(e, is_first ? sum.a : sum.b);
    if (!is_integral(zero) || std::abs(zero) > kBytes - 1) return false;
    index = is_first ? sum.b : sum.a;
  }
  return has_low && has_high && e.nodes[static_cast<size_t>(index)].op == ExprOp::round_even;
}

// What follows node `byte`, which becomes input 0. Without nodes: something depends on an input otherwise.
Expression behind(const Expression& e, int byte, DType dtype) {
  Expression tail;
  tail.inputs = {dtype};
  tail.output = e.output;
  std::vector<int> moved(e.nodes.size(), -1);
  for (size_t i = 0; i < e.nodes.size(); ++i) {
    ExprNode node = e.nodes[i];
    if (static_cast<int>(i) == byte) {
      moved[i] = tail.add({.op = ExprOp::input, .a = 0});
      continue;
    }
    if (node.op == ExprOp::input) continue;
    bool is_known = true;
    for (int* operand : {&node.a, &node.b, &node.c}) {
      if (*operand < 0) continue;
      *operand = moved[static_cast<size_t>(*operand)];
      is_known = is_known && *operand >= 0;
    }
    if (is_known) moved[i] = tail.add(node);
  }
  // The last node is the result.
  return moved.back() >= 0 ? tail : Expression();
}

// Node `last` and what it depends on.
Expression up_to(const Expression& e, int last, DType dtype) {
  std::vector<bool> is_used(static_cast<size_t>(last) + 1, false);
  is_used.back() = true;
  for (size_t i = is_used.size(); i-- > 0;) {
    const ExprNode& node = e.nodes[i];
    if (!is_used[i] || node.op == ExprOp::input) continue;
    for (const int operand : {node.a, node.b, node.c}) {
      if (operand >= 0) is_used[static_cast<size_t>(operand)] = true;
    }
  }
  Expression head;
  head.inputs = e.inputs;
  head.output = dtype;
  std::vector<int> moved(is_used.size(), -1);
  for (size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) continue;
    ExprNode node = e.nodes[i];
    for (int* operand : {&node.a, &node.b, &node.c}) {
      if (node.op != ExprOp::input && *operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
    }
    moved[i] = head.add(node);
  }
  return head;
}

ByteTable table_of(const Expression& tail) {
  const bool is_signed = tail.inputs[0] == DType::i8;
  ByteTable table = {};
  for (int bits = 0; bits < kBytes; ++bits) {
    const auto byte = static_cast<float>(is_signed ? static_cast<int8_t>(bits) : bits);
    table[static_cast<size_t>(bits)] = static_cast<uint8_t>(static_cast<int>(evaluate(tail, &byte)));
  }
  return table;
}

}  // namespace

std::optional<ByteTail> byte_tail(const Expression& e, double least_flop) {
  if (e.output != DType::u8 && e.output != DType::i8) return std::nullopt;
  for (int i = 0; i + 1 < static_cast<int>(e.nodes.size()); ++i) {
    const ExprNode& node = e.nodes[static_cast<size_t>(i)];
    if (node.op != ExprOp::min && node.op != ExprOp::max) continue;
    for (const DType dtype : {DType::u8, DType::i8}) {
      if (!is_quantization(e, i, dtype)) continue;
      const Expression tail = behind(e, i, dtype);
      if (tail.nodes.empty() || flop_per_element(tail) < least_flop) continue;
      return ByteTail{up_to(e, i, dtype), table_of(tail)};
    }
  }
  return std::nullopt;
}

std::optional<ByteTable> take_tail_for_look_up(Expression& e, Isa isa) {
  if (has_byte_tables(isa)) return std::nullopt;
  std::optional<ByteTail> tail = byte_tail(e, kFlopWorthAnotherLookUp);
  if (!tail) return std::nullopt;
  e = std::move(tail->head);
  return tail->table;
}

}  // namespace lathe
