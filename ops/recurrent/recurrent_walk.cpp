#include "ops/recurrent/recurrent_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// A direction, or some of its batch entries.
struct Part {
  RecurrentPart what;
  BufferId projected = BufferId::none;
  std::vector<BufferId> weights;

  const RecurrentProgram& program() const { return *what.program; }
};

struct Bound {
  RecurrentTask task;
  std::vector<Part> parts;
  int64_t most_entries = 0, own_elements = 0;  // of the part that has most
  BufferId bias = BufferId::none, initial_h = BufferId::none, initial_c = BufferId::none, peepholes = BufferId::none;
  BufferId lengths = BufferId::none;
  BufferId r_scale = BufferId::none;
  int64_t r_scale_elements = 0;  // of a direction
  BufferId y = BufferId::none, last_h = BufferId::none, last_c = BufferId::none, scratch = BufferId::none;

  // Parts of one direction whose H has one range, which they find together.
  bool shares_ranges() const { return task.parts > 1 && !task.r_bytes.empty(); }
  int rounds() const {
    return task.shares > 1 ? parts[0].program().rounds() : shares_ranges() ? parts[0].program().rounds_of_ranges() : 1;
  }
  // Of each part: the gates, and for each share the program's own, then states: first hidden rows, cell rows, hidden
  // rows and, where sequences end early, those of hidden and cell that they ended with. Behind all parts: ranges.
  int64_t scratch_elements() const {
    const int64_t ranges = shares_ranges() ? 2 * static_cast<int64_t>(parts.size()) * RecurrentRanges::kStride : 0;
    return static_cast<int64_t>(parts.size()) * part_elements() + ranges;
  }
  void operator()(const StepArgs& args) const {
    if (task.shares > 1) return run(args, args.share / task.shares, args.share % task.shares);
    const Range mine = split_evenly(static_cast<long>(parts.size()), args.share, args.shares);
    for (long part = mine.begin; part < mine.end; ++part) run(args, part, 0);
  }

 private:
  static int64_t whole_lines(int64_t elements) { return round_up(elements, 16); }
  int64_t gate_columns() const { return task.spec.gates * task.extents.hidden; }
  int64_t gate_elements() const { return whole_lines((task.shares > 1 ? 2 : 1) * most_entries * gate_columns()); }
  int64_t part_elements() const { return gate_elements() + task.shares * share_elements(); }
  int64_t share_elements() const { return whole_lines(own_elements + (task.has_lengths ? 5 : 3) * state_elements()); }
  int64_t state_elements() const { return most_entries * task.extents.hidden; }
  int64_t state_stride() const {
    return task.spec.is_batch_first ? task.spec.directions * task.extents.hidden : task.extents.hidden;
  }
  // Of a part within a tensor of states.
  int64_t state_offset(const RecurrentPart& part) const {
    const RecurrentExtents& e = task.extents;
    const int64_t direction = part.direction * (task.spec.is_batch_first ? 1 : e.batch) * e.hidden;
    return direction + part.first_entry * state_stride();
  }
  size_t row_bytes() const { return static_cast<size_t>(task.extents.hidden) * sizeof(float); }
  void copy_rows(int64_t count, ConstHiddenRows from, HiddenRows to) const {
    const size_t bytes = row_bytes();
    for (int64_t b = 0; b < count; ++b) {
      float* row = to.data + b * to.stride;
      if (from.data == nullptr) {
        std::memset(row, 0, bytes);
      } else if (from.data + b * from.stride != row) {
        std::memcpy(row, from.data + b * from.stride, bytes);
      }
    }
  }
  // Sequences of no steps end with zeros, whatever they began with, as ONNX Runtime has it.
  void clear_empty(const RecurrentOperands& operands, int64_t entries, HiddenRows states) const {
    for (int64_t b = 0; operands.lengths != nullptr && b < entries; ++b) {
      if (operands.lengths[b] == 0) copy_rows(1, {}, {states.data + b * states.stride, states.stride});
    }
  }
  ConstHiddenRows initial(const StepArgs& args, BufferId buffer, const RecurrentPart& part) const {
    if (buffer == BufferId::none) return {};
    return {args.at<const float>(buffer) + state_offset(part), state_stride()};
  }
  HiddenRows state(const StepArgs& args, BufferId buffer, const RecurrentPart& part, float* otherwise) const {
    if (buffer == BufferId::none) return {otherwise, task.extents.hidden};
    return {args.at<float>(buffer) + state_offset(part), state_stride()};
  }

  void run(const StepArgs& args, int64_t number, int share) const {
    const RecurrentPart& part = parts[static_cast<size_t>(number)].what;
    const RecurrentProgram& program = *part.program;
    const RecurrentOperands operands = operands_of(args, number, share);
    if (args.round == 0) {
      if (initial_h == BufferId::none) {
        copy_rows(program.entries(), {}, {operands.own + own_elements, task.extents.hidden});
      }
      if (task.spec.cell == RecurrentCell::lstm) {
        copy_rows(program.entries(), initial(args, initial_c, part), operands.cell);
      }
    }
    ConstHiddenRows last;
    if (task.shares > 1) {
      last = program.run_round(operands, {share, task.shares, args.round});
    } else if (shares_ranges()) {
      last = program.run_round_of_ranges(operands, ranges_of(args, number), args.round);
    } else {
      last = program.run(operands);
    }
    const bool is_end = args.round + 1 == rounds() && share == 0;
    if (is_end && last_h != BufferId::none) {
      const HiddenRows states = state(args, last_h, part, nullptr);
      copy_rows(program.entries(), last, states);
      clear_empty(operands, program.entries(), states);
    }
    if (is_end && last_c != BufferId::none) clear_empty(operands, program.entries(), operands.cell);
  }

  RecurrentRanges ranges_of(const StepArgs& args, int64_t number) const {
    float* all = args.at<float>(scratch) + static_cast<int64_t>(parts.size()) * part_elements();
    const int64_t own = number % task.parts;
    return {all + 2 * (number - own) * RecurrentRanges::kStride, task.parts, static_cast<int>(own)};
  }

  // The states of all steps are the result. Where sequences end early these are others: they are copied.
  void put_results(const StepArgs& args, const RecurrentPart& part, RecurrentOperands& operands) const {
    const RecurrentExtents& e = task.extents;
    const int64_t row = task.spec.directions * e.hidden;  // of all directions
    const bool by_batch = task.spec.is_batch_first;
    const int64_t stride = by_batch ? e.steps * row : e.hidden;
    const int64_t direction = part.direction * (by_batch ? 1 : e.batch) * e.hidden;
    const HiddenRows rows{args.at<float>(y) + direction + part.first_entry * stride, stride};
    const int64_t step = by_batch ? row : e.batch * row;
    if (operands.lengths != nullptr) {
      operands.copied = rows;
      operands.copied_step = step;
    } else {
      operands.hidden = rows;
      operands.hidden_step = step;
    }
  }

  // The results are the first share's; the others keep their states to themselves.
  RecurrentOperands operands_of(const StepArgs& args, int64_t number, int share) const {
    const RecurrentSpec& spec = task.spec;
    const RecurrentExtents& e = task.extents;
    const Part& bound = parts[static_cast<size_t>(number)];
    const RecurrentPart& part = bound.what;
    const int64_t d = part.direction;
    RecurrentOperands operands;
    operands.gates = args.at<float>(scratch) + number * part_elements();
    operands.own = operands.gates + gate_elements() + share * share_elements();
    float* states = operands.own + own_elements;
    operands.projected_step = (spec.is_batch_first ? 1 : e.batch) * gate_columns();
    operands.projected_entry = (spec.is_batch_first ? e.steps : 1) * gate_columns();
    operands.projected = args.at<const float>(bound.projected) + part.first_entry * operands.projected_entry;
    for (size_t i = 0; i < bound.weights.size(); ++i) {
      operands.weights[i] = args.at<const void>(bound.weights[i]);
    }
    if (bias != BufferId::none) {
      operands.recurrent_bias = args.at<const float>(bias) + (2 * d + 1) * gate_columns();
    }
    if (task.has_peepholes) operands.peepholes = args.at<const float>(peepholes) + d * 3 * e.hidden;
    if (r_scale != BufferId::none) operands.r_scale = args.at<const float>(r_scale) + d * r_scale_elements;
    operands.first_hidden = initial(args, initial_h, part);
    if (operands.first_hidden.data == nullptr) operands.first_hidden = {states, e.hidden};
    operands.cell = state(args, share == 0 ? last_c : BufferId::none, part, states + state_elements());
    operands.hidden = {states + 2 * state_elements(), e.hidden};
    if (lengths != BufferId::none) {
      operands.lengths = args.at<const int32_t>(lengths) + part.first_entry;
      operands.held = states + 3 * state_elements();
    }
    if (y != BufferId::none && share == 0) put_results(args, part, operands);
    operands.goes_back_by_entry = task.reverses_by_entry(d);
    operands.is_reversed = spec.is_reversed(d) && !operands.goes_back_by_entry;
    operands.wants_y = y != BufferId::none;
    return operands;
  }
};

// Threads share a direction by batch entries or by columns of the products. Entries are independent of one another, but
// each thread streams all weights; columns need all of H at every step, and all threads compute the gates for
// themselves.
void choose_split(const LowerContext& context, RecurrentTask& task) {
  constexpr double kFlopPerShare = 150e3;  // about 1.5 us, three times as long as it takes to meet
  const RecurrentExtents& e = task.extents;
  const int most = std::max(1, context.target.threads / static_cast<int>(task.spec.directions));
  const int64_t weights = task.spec.gates * e.hidden * e.hidden;
  const double flop = 2.0 * static_cast<double>(e.batch) * static_cast<double>(weights);
  const int threads = worthwhile_threads(flop * static_cast<double>(e.steps), most);
  const int parts = static_cast<int>(std::clamp<int64_t>(threads, 1, e.batch));
  // Of a thread: the farther weights come from, the more entries must use them. An LSTM of float32 at 2 threads, by
  // entries and by columns: 1024 units 3.8 and 2.6 ms for 4, 10.2 and 10.3 for 16; 256 units 0.72 and 0.93 for 4.
  const auto bytes = static_cast<size_t>(weights) * (task.r_bytes.empty() ? sizeof(float) : 1);
  const size_t near_bytes = context.target.near_cache_bytes;
  const int64_t fewest = 2 * bytes <= near_bytes ? 1 : bytes <= 2 * near_bytes ? 2 : 4;
  // Parts of different heights would want weights in different forms.
  constexpr int kAlike = 8;
  const bool is_even = e.batch % parts == 0 || e.batch / parts > kAlike;
  if (parts > 1 && is_even && e.batch >= fewest * parts) {
    task.parts = parts;
  } else {
    task.shares = std::clamp(static_cast<int>(flop / kFlopPerShare), 1, most);
  }
}

// A length that no sequence can have is told of before anything reads it.
void add_length_check(const LowerContext& context, BufferId lengths, const RecurrentExtents& extents) {
  Step step;
  step.kernel = "check lengths";
  step.reads = {lengths};
  const std::string place = describe(context.node);
  step.run = [=, batch = extents.batch, steps = extents.steps](const StepArgs& args) {
    const auto* each = args.at<const int32_t>(lengths);
    for (int64_t b = 0; b < batch; ++b) {
      if (each[b] >= 0 && each[b] <= steps) continue;
      throw Error(ErrorCode::invalid_argument, place + ": sequence length " + std::to_string(each[b]) +
                                                   " is out of range for " + std::to_string(steps) + " steps");
    }
  };
  context.add(std::move(step));
}

BufferId packed_r(const LowerContext& context, const RecurrentTask& task, const RecurrentPart& part, size_t number) {
  const RecurrentProduct& product = part.program->product(number);
  const int64_t direction = part.direction;
  const bool is_float = task.r_bytes.empty();
  const int64_t elements = task.spec.gates * task.extents.hidden * task.extents.hidden;
  const int64_t offset = direction * elements * (is_float ? int64_t{sizeof(float)} : 1);
  const ByteZeros zeros =
      is_float ? ByteZeros() : zeros_of_direction(context, kRZero, nullptr, 0, task.spec.directions);
  PackedForm form;
  form.text = fmt::format("direction {} {}", direction, product.packed_text());
  form.bytes = product.packed_bytes();
  form.pack = [=, program = part.program](const char* r, const char* zero_points, void* out) {
    ByteZeros mine = zeros;
    if (zero_points != nullptr) mine.data = zero_points + direction * zeros.count;
    program->product(number).pack(r + offset, mine, out);
  };
  return packed_weights(context, kR, is_float ? std::nullopt : std::optional(kRZero), form);
}

}  // namespace

bool describe_walk(const LowerContext& context, RecurrentTask& task) {
  // What the operands must be for the addresses below; a node that breaks it is told so by the reference.
  const std::pair<int, const char*> shapes[] = {{kB, "B"}, {kInitialH, "Y_h"}, {kInitialC, "Y_h"}, {kPeepholes, "P"}};
  for (const auto& [input, name] : shapes) {
    if (!context.has_input(input)) continue;
    const TensorType& type = context.input_type(input);
    if (type.dtype != DType::f32 || type.extents() != recurrent_dims(task.spec, task.extents, name)) return false;
  }
  task.has_lengths = context.has_input(kLengths);
  if (task.has_lengths) {
    const TensorType& type = context.input_type(kLengths);
    if (type.dtype != DType::i32 || type.extents() != Dims{task.extents.batch}) return false;
  }
  const bool is_lstm = task.spec.cell == RecurrentCell::lstm;
  task.has_bias = context.has_input(kB);
  task.has_peepholes = is_lstm && context.has_input(kPeepholes);
  task.isa = context.target.isa;
  const RecurrentExtents& e = task.extents;
  if (e.steps <= 0 || e.batch <= 0 || e.input <= 0 || e.hidden <= 0) return false;
  choose_split(context, task);
  return true;
}

std::vector<RecurrentPart> recurrent_parts(const RecurrentTask& task, PlanSource& plans) {
  std::vector<RecurrentPart> parts;
  for (int64_t direction = 0; direction < task.spec.directions; ++direction) {
    std::shared_ptr<const RecurrentProgram> program;
    for (int part = 0; part < task.parts; ++part) {
      const Range entries = split_evenly(static_cast<long>(task.extents.batch), part, task.parts);
      RecurrentTask own = task;
      own.extents.batch = entries.end - entries.begin;
      if (!program || program->entries() != own.extents.batch) {
        program = std::make_shared<const RecurrentProgram>(own, direction, plans);
      }
      parts.push_back({direction, entries.begin, program});
    }
  }
  return parts;
}

void add_walk(const LowerContext& context, const RecurrentTask& task, const std::vector<RecurrentPart>& parts,
              const std::vector<BufferId>& projected) {
  Bound bound;
  bound.task = task;
  for (const RecurrentPart& part : parts) {
    Part added{part, projected[static_cast<size_t>(part.direction)], {}};
    const bool is_repeated = !bound.parts.empty() && bound.parts.back().what.program == part.program;
    if (is_repeated) added.weights = bound.parts.back().weights;
    for (size_t i = 0; !is_repeated && i < part.program->products(); ++i) {
      added.weights.push_back(packed_r(context, task, part, i));
    }
    bound.most_entries = std::max(bound.most_entries, part.program->entries());
    bound.own_elements = std::max(bound.own_elements, part.program->own_elements());
    bound.parts.push_back(std::move(added));
  }
  const RecurrentExtents& e = bound.task.extents;
  const auto buffer = [&](int input) {
    return context.has_input(input) ? context.buffer(context.input(input)) : BufferId::none;
  };
  const auto result = [&](int i) { return context.has_output(i) ? context.buffer(context.output(i)) : BufferId::none; };
  bound.initial_h = buffer(kInitialH);
  if (bound.task.spec.is_linear_before_reset) bound.bias = buffer(kB);
  if (bound.task.spec.cell == RecurrentCell::lstm) {
    bound.initial_c = buffer(kInitialC);
    bound.peepholes = buffer(kPeepholes);
    bound.last_c = result(2);
  }
  if (!task.r_bytes.empty()) {
    bound.r_scale = buffer(kRScale);
    bound.r_scale_elements = elements_by_direction(context, kRScale, task.spec.directions);
  }
  bound.lengths = buffer(kLengths);
  if (task.has_lengths) add_length_check(context, bound.lengths, e);
  bound.y = result(0);
  bound.last_h = result(1);
  bound.scratch = context.scratch(checked_multiply(sizeof(float), static_cast<size_t>(bound.scratch_elements())));
  Step step;
  step.op = context.node.op->name;
  step.kernel = parts[0].program->text();
  for (const BufferId id :
       {bound.initial_h, bound.bias, bound.initial_c, bound.peepholes, bound.r_scale, bound.lengths, bound.scratch}) {
    if (id != BufferId::none) step.reads.push_back(id);
  }
  for (const Part& part : bound.parts) {
    step.reads.push_back(part.projected);
    step.reads.insert(step.reads.end(), part.weights.begin(), part.weights.end());
  }
  for (const BufferId id : {bound.y, bound.last_h, bound.last_c, bound.scratch}) {
    if (id != BufferId::none) step.writes.push_back(id);
  }
  const double weights =
      static_cast<double>(task.spec.gates * e.hidden * e.hidden) * static_cast<double>(task.spec.directions);
  step.flop = 2 * weights * static_cast<double>(e.batch) * static_cast<double>(e.steps);
  step.bytes = (task.r_bytes.empty() ? 4 : 1) * weights;
  // What a thread has of one direction, or of as many as threads take at a time.
  const auto threads = static_cast<double>(context.target.threads),
             directions = static_cast<double>(task.spec.directions);
  step.reread_bytes = step.bytes * static_cast<double>(e.steps - 1);
  step.reread_near_bytes = step.bytes / std::max(threads, directions);
  const auto count = static_cast<int>(parts.size()) * task.shares;
  step.threads =
      task.parts * task.shares > 1 ? count : worthwhile_threads(step.flop, std::min(context.target.threads, count));
  step.rounds = bound.rounds();
  step.run = std::move(bound);
  context.add(std::move(step));
}

}  // namespace lathe
