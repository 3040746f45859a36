#pragma once
// Convolutions of integers as the node says, not by Winograd's method: their problem, their code, their steps.
#include <memory>
#include <optional>

#include "ops/conv/conv_int8_crossed.h"
#include "ops/conv/conv_int8_input.h"
#include "ops/conv/conv_int8_operands.h"
#include "ops/conv/conv_int8_program.h"

namespace lathe {

struct DirectConvInt8 {
  ConvInt8Input input;
  ConvInt8Problem problem;
};
// `moved_down`: ConvInt8Input::move_down().
DirectConvInt8 describe_direct(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                               const ConvInt8Operands& operands, const TensorType& in_type, Int8Dot dot,
                               int32_t moved_down = 0);

// The same with its code.
struct EmittedConvInt8 {
  ConvInt8Input input;
  CrossedSteps steps;
  bool is_crossed = false;
  std::shared_ptr<const ConvInt8Program> program;
};
// Products are crossed where that is possible and pays. nullopt: there is no code for it.
std::optional<EmittedConvInt8> emit_direct(const LowerContext& context, const ConvNode& conv,
                                           const ConvInt8Zeros& zeros, const ConvInt8Operands& operands,
                                           const TensorType& in_type, DirectConvInt8 direct, int threads);

void add_direct_steps(const LowerContext& context, const ConvInt8Zeros& zeros, const ConvInt8Operands& operands,
                      const EmittedConvInt8& emitted, BufferId from, BufferId target);

}  // namespace lathe
