#include "ops/task_text.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <utility>

#include "ops/conv/conv_int8_tuning.h"
#include "ops/conv/conv_tuning.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/int8/int8_product.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/expression_text.h"

namespace lathe {
namespace {

constexpr int64_t kMostExtent = 1 << 24;

// The one of `values` whose name stands in front of `end`.
template <class Value, class NameOf>
Value read_named(TextReader& text, std::string_view end, std::initializer_list<Value> values, NameOf name_of_value,
                 const char* expected) {
  const std::string_view name = text.until(end);
  for (const Value value : values)
    if (name_of_value(value) == name) return value;
  text.fail(expected);
}

Isa read_isa(TextReader& text) {
  const std::optional<Isa> isa = isa_named(text.until(" "));
  if (!isa) text.fail("expected an instruction set");
  if (is_usable(*isa)) return *isa;
  throw Error(ErrorCode::unsupported, "the task is for " + std::string(name_of(*isa)) + ", which is not usable here");
}

int64_t read_extent(TextReader& text, std::string_view after = "") {
  text.expect(after);
  const int64_t extent = text.integer();
  if (extent < 1 || extent > kMostExtent) text.fail("an extent out of range");
  return extent;
}

template <class Problem>
void read_extents(TextReader& text, Problem& problem) {
  problem.batches = read_extent(text, "b");
  problem.m = read_extent(text, " m");
  problem.n = read_extent(text, " n");
  problem.k = read_extent(text, " k");
}

// One letter for each input of an expression but the first: how it is read.
template <class Access>
std::vector<Access> read_accesses(TextReader& text, const Expression& expression,
                                  std::initializer_list<std::pair<std::string_view, Access>> letters) {
  std::vector<Access> accesses;
  while (!text.done()) {
    const auto found =
        std::find_if(letters.begin(), letters.end(), [&](const auto& each) { return text.accept(each.first); });
    if (found == letters.end()) text.fail("expected how an input is read");
    accesses.push_back(found->second);
  }
  if (accesses.size() + 1 != expression.inputs.size()) text.fail("expected one letter for each input");
  return accesses;
}

std::optional<GemmEpilogue> read_gemm_epilogue(TextReader& text) {
  if (text.done()) return std::nullopt;
  text.expect(" ");
  GemmEpilogue epilogue;
  epilogue.expression = read_expression(text);
  if (!text.done()) text.expect(" ");
  epilogue.inputs = read_accesses<GemmInputAccess>(text, epilogue.expression,
                                                   {{"c", GemmInputAccess::columns}, {"u", GemmInputAccess::uniform}});
  return epilogue;
}

GemmProblem read_gemm(TextReader& text) {
  GemmProblem problem;
  text.expect("f32 ");
  read_extents(text, problem);
  text.expect(" ");
  if (text.accept("row_major ")) {
    problem.b = GemmOperandB::row_major;
  } else if (text.accept("transposed ")) {
    problem.b = GemmOperandB::transposed;
  } else {
    text.expect("packed ");
  }
  problem.isa = read_isa(text);
  if (text.accept(" lda")) problem.a_stride = read_extent(text);
  if (text.accept(" ldb")) problem.b_stride = read_extent(text);
  problem.allows_strassen = text.accept(" strassen");
  for (const WeightFormat format : {WeightFormat::bfp20, WeightFormat::f16, WeightFormat::bf16, WeightFormat::bfp24})
    if (text.accept(" " + std::string(name_of(format)))) problem.narrow = format;
  if (text.accept(" sums")) problem.longest_sum = static_cast<int>(text.integer());
  problem.epilogue = read_gemm_epilogue(text);
  return problem;
}

Int8Dot read_dot(TextReader& text) {
  const std::string_view name = text.until(" ");
  for (const Int8Dot dot : {Int8Dot::u8s8, Int8Dot::s8u8, Int8Dot::u8s7, Int8Dot::s8s8, Int8Dot::u8s8_halved,
                            Int8Dot::s8u8_halved, Int8Dot::pairs, Int8Dot::crossed})
    if (to_string(dot) == name) return dot;
  text.fail("expected how bytes are multiplied");
}

void check_dot(const TextReader& text, Int8Dot dot, Isa isa) {
  if (!has_dot(isa, dot)) text.fail("the instruction set does not multiply bytes so");
}

Int8Problem read_gemm_int8(TextReader& text) {
  Int8Problem problem;
  problem.dot = read_dot(text);
  text.expect(" ");
  read_extents(text, problem);
  text.expect(" ");
  problem.isa = read_isa(text);
  check_dot(text, problem.dot, problem.isa);
  problem.has_rows = text.accept(" rows");
  if (text.accept(" lda")) problem.a_stride = read_extent(text);
  problem.epilogue = read_gemm_epilogue(text);
  if (problem.epilogue && problem.epilogue->inputs.size() > kMaxInt8Inputs) text.fail("too many inputs");
  return problem;
}

ConvAxis read_axis(TextReader& text) {
  ConvAxis axis;
  axis.in = read_extent(text);
  axis.out = read_extent(text, ">");
  axis.stride = read_extent(text, "s");
  axis.taps.clear();
  if (text.accept("[")) {
    do {
      ConvTap tap;
      tap.kernel = static_cast<int>(text.integer());
      text.expect("@");
      tap.offset = text.integer();
      axis.taps.push_back(tap);
    } while (text.accept(" "));
  }
  text.expect("]");
  if (text.accept("every")) {
    axis.out_step = read_extent(text);
    text.expect("from");
    axis.out_first = text.integer();
  }
  axis.out_extent = read_extent(text, "of");
  return axis;
}

ConvEpilogue read_conv_epilogue(TextReader& text) {
  ConvEpilogue epilogue;
  if (text.accept("none")) return epilogue;
  epilogue.expression = read_expression(text);
  text.expect(":");
  epilogue.operands = read_accesses<ConvOperand>(
      text, *epilogue.expression,
      {{"s", ConvOperand::scalar}, {"c", ConvOperand::per_channel}, {"f", ConvOperand::full}});
  return epilogue;
}

ConvFrames read_frames(TextReader& text, const ConvProblem& problem) {
  ConvFrames frames;
  frames.in = read_extent(text);
  frames.out = read_extent(text, ">");
  frames.step = read_extent(text, " step");
  frames.joined = read_extent(text, " join");
  frames.stacked = read_extent(text, " stack");
  frames.are_outer = text.accept(" outer");
  if (problem.batch % frames.out != 0 || problem.in_blocks() % frames.joined != 0 ||
      problem.phases[0].y.in % frames.stacked != 0) {
    text.fail("the frames do not divide the images, their channels or their rows");
  }
  const int64_t last = (frames.out - 1) * frames.step + frames.joined * frames.stacked;
  if (last > frames.in || (frames.joined > 1 && !frames.are_outer) || (frames.stacked > 1 && frames.are_outer))
    text.fail("no volume has these frames");
  return frames;
}

ConvProblem read_conv(TextReader& text) {
  ConvProblem problem;
  problem.batch = read_extent(text, "n");
  problem.in_channels = read_extent(text, " ");
  problem.out_channels = read_extent(text, ">");
  problem.groups = read_extent(text, "/");
  problem.window_y = read_extent(text, " ");
  problem.window_x = read_extent(text, "x");
  problem.is_transposed = text.accept(" transposed");
  problem.lanes = static_cast<int>(read_extent(text, " c"));
  problem.has_bias = text.accept(" bias");
  if (problem.in_channels % problem.groups != 0 || problem.out_channels % problem.groups != 0)
    text.fail("the groups do not divide the channels");
  while (text.accept(" | y")) {
    ConvShape shape;
    shape.y = read_axis(text);
    text.expect(" x");
    shape.x = read_axis(text);
    shape.lanes = static_cast<int>(read_extent(text, " c"));
    problem.phases.push_back(std::move(shape));
  }
  if (problem.phases.empty()) text.fail("expected the shape");
  if (text.accept(" frames ")) problem.frames = read_frames(text, problem);
  if (text.accept(" wsums")) problem.longest_winograd_sum = static_cast<int>(text.integer());
  if (text.accept(" w")) problem.most_winograd = static_cast<int>(text.integer());
  problem.has_exact_weights = text.accept(" exact");
  if (text.accept(" sums")) problem.longest_sum = static_cast<int>(text.integer());
  text.expect(" | ");
  problem.epilogue = read_conv_epilogue(text);
  return problem;
}

std::vector<uint8_t> read_table(TextReader& text) {
  constexpr size_t kBytes = 256;
  const std::string_view digits = text.until(" ");
  std::vector<uint8_t> table(kBytes);
  if (digits.size() != 2 * kBytes) text.fail("expected 256 bytes in hexadecimal digits");
  for (size_t i = 0; i < kBytes; ++i) {
    const char* at = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(at, at + 2, table[i], 16);
    if (error != std::errc() || end != at + 2) text.fail("expected 256 bytes in hexadecimal digits");
  }
  return table;
}

Int8Store read_store(TextReader& text) {
  Int8Store store;
  store.dtype = read_named(
      text, "+", {DType::f32, DType::i32, DType::u8, DType::i8}, [](DType each) { return name_of(each); },
      "expected how results are stored");
  text.expect("+");
  store.zero = static_cast<int>(std::clamp<int64_t>(text.integer(), -128, 255));
  store.is_bounded = text.accept("b");
  if (text.accept(":")) store.table = read_table(text);
  return store;
}

ConvInt8Problem read_conv_int8(TextReader& text) {
  ConvInt8Problem problem;
  problem.isa = read_isa(text);
  text.expect(" ");
  problem.dot = read_dot(text);
  check_dot(text, problem.dot, problem.isa);
  problem.in_channels = read_extent(text, " k");
  if (text.accept("/")) problem.channel_groups = read_extent(text);
  text.expect(" ");
  problem.store = read_store(text);
  if (!problem.store.table.empty() && !has_byte_tables(problem.isa)) text.fail("tables need AVX512-VBMI");
  text.expect(" ");
  problem.shape = read_conv(text);
  problem.epilogue = std::move(problem.shape.epilogue);
  problem.shape.epilogue = ConvEpilogue();
  const ConvProblem& shape = problem.shape;
  if (shape.lanes != vector_lanes(problem.isa)) text.fail("the channels' blocks do not fit the instruction set");
  if (shape.groups != 1 || shape.is_transposed || shape.phases.size() != 1) text.fail("no such convolution of bytes");
  if (problem.in_channels % problem.channel_groups != 0 || shape.out_channels % problem.channel_groups != 0)
    text.fail("the groups do not divide the channels");
  // Of groups all blocks are whole.
  const int64_t read = divide_up(problem.in_channels, group_of(problem.dot)), lanes = shape.in_lanes();
  if (shape.in_channels != (problem.channel_groups > 1 ? round_up(read, lanes) : read))
    text.fail("these channels do not fill the input's groups of bytes");
  if (problem.dot == Int8Dot::crossed && !can_cross(problem))
    text.fail("products of this convolution cannot be crossed");
  if (problem.epilogue.operands.size() > static_cast<size_t>(ConvEpilogue::kMaxOperands)) text.fail("too many inputs");
  return problem;
}

// Operands that could not be allocated are no task.
TuningTask checked(TuningTask task, const TextReader& text) {
  constexpr double kMostBytes = 4e9;
  if (task.bytes > kMostBytes) text.fail("the operands are too large");
  return task;
}

}  // namespace

std::string task_text(const TuningTask& task) { return task.family.substr(0, task.family.find('.')) + " " + task.key; }

TuningTask parse_task(std::string_view line, int threads) {
  TextReader text(line);
  if (text.accept("gemm ")) {
    GemmProblem problem = read_gemm(text);
    problem.threads = worthwhile_threads(problem.flop(), threads);
    return checked(gemm_tuning_task(problem), text);
  }
  if (text.accept("gemm_int8 ")) {
    Int8Problem problem = read_gemm_int8(text);
    problem.threads = worthwhile_threads(problem.flop() / 4, threads);
    return checked(int8_tuning_task(problem), text);
  }
  if (text.accept("conv_int8 ")) {
    const ConvInt8Problem problem = read_conv_int8(text);
    return checked(conv_int8_tuning_task(problem, worthwhile_threads(problem.shape.flop(), threads)), text);
  }
  if (text.accept("conv ")) {
    const Isa isa = read_isa(text);
    text.expect(" ");
    const ConvProblem problem = read_conv(text);
    if (problem.lanes != vector_lanes(isa)) text.fail("the channels' blocks do not fit the instruction set");
    return checked(conv_tuning_task(problem, isa, threads), text);
  }
  text.fail("expected 'conv', 'conv_int8', 'gemm', 'gemm_int8' or 'node'");
}

}  // namespace lathe
