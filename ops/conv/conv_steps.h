#pragma once
// The programs of float convolutions bound to a node: which one runs, and its steps.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/conv/conv_depthwise_program.h"
#include "ops/conv/conv_program.h"
#include "ops/conv/conv_strassen.h"
#include "ops/lower.h"
#include "ops/winograd/winograd_program.h"
#include "ops/winograd/winograd_stem.h"

namespace lathe {

struct ConvBuffers {
  BufferId source, target, bias = BufferId::none;
  std::vector<BufferId> operands;
};

// One of them, by the plan.
struct ConvPrograms {
  std::shared_ptr<const ConvProgram> dense;
  std::shared_ptr<const DepthwiseProgram> depthwise;
  std::shared_ptr<const WinogradProgram> winograd;
  std::shared_ptr<const WinogradStem> stem;
  std::shared_ptr<const StrassenConv> strassen;
  std::string plan;
  int pool = 1;  // as of WinogradProgram
};

// nullopt: no kernel can be emitted, or none that pools.
std::optional<ConvPrograms> make_conv_programs(const LowerContext& context, const ConvProblem& problem, int threads,
                                               const std::vector<int64_t>& operand_batch_bytes, int pool = 1);
// Binds the weights, input 1, too. `buffers`: as the problem has them.
void add_conv_steps(const LowerContext& context, const ConvPrograms& programs, int threads, const ConvBuffers& buffers);

}  // namespace lathe
