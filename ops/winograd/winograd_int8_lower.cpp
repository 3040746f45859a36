#include "ops/winograd/winograd_int8_lower.h"

#include "ops/fetch_far.h"

namespace lathe {

Tensor pack_winograd_int8(const LowerContext& context, const WinogradInt8Program& program, int slot,
                          const ByteMatrix& weights, const ByteZeros& zeros) {
  std::string text = program.packing() + " zeros";
  for (int64_t i = 0; i < zeros.count; ++i) text += " " + std::to_string(zeros.at(i));
  return context.packed(context.input(slot), text, [&] {
    Tensor packed = allocate_weights(DType::u8, {program.packed_bytes()});
    program.pack(weights, zeros, packed.mutable_raw());
    return packed;
  });
}

void add_winograd_int8_steps(const LowerContext& context, const std::shared_ptr<const WinogradInt8Program>& program,
                             const Tensor& weights, const ConvInt8Buffers& buffers) {
  const int parts = program->parts();
  const auto scratch_bytes = static_cast<size_t>(program->scratch_bytes());
  // A single thread has just used what is free in the arena.
  const bool is_own = parts == 1 && program->threads() > 1;
  const BufferId scratch = is_own ? context.thread_scratch(scratch_bytes) : context.scratch(scratch_bytes);
  static constexpr const char* kParts[] = {" input", " products", " output"};
  const double bytes[] = {static_cast<double>(context.input_type(0).storage_bytes()),
                          static_cast<double>(program->packed_bytes()),
                          static_cast<double>(context.output_type(0).storage_bytes())};
  for (int part = 0; part < parts; ++part) {
    Step step;
    step.kernel = program->plan_text() + (parts > 1 ? kParts[part] : "");
    step.reads = {scratch};
    step.writes = {scratch};
    if (part == 0) step.reads.push_back(buffers.source);
    if (parts == 1 || part == 1) {
      step.reads.push_back(buffers.packed);
      // Of a direct convolution, so that algorithms compare.
      step.flop = program->problem().conv.shape.flop() * group_of(program->problem().conv.dot);
      step.weights = weights.raw();
    }
    if (part == parts - 1) {
      step.reads.push_back(buffers.init);
      step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
      step.writes.push_back(buffers.target);
    }
    step.threads = program->threads();
    step.bytes = parts == 1 ? bytes[0] + bytes[1] + bytes[2] : bytes[part];
    step.next_weights = std::make_shared<const void*>(nullptr);
    const size_t read = program->reads_all() ? context.input_type(0).storage_bytes() : 0;
    step.run = [=, next = step.next_weights](const StepArgs& args) {
      fetch_far(args, args.at<const void>(buffers.source), read);
      char* at = is_own ? args.own<char>(scratch) : args.at<char>(scratch);
      program->run_part(part, buffers.bind(args, *next), at, args.share);
    };
    context.add(std::move(step));
  }
}

}  // namespace lathe
