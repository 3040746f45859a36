#pragma once
// What the steps of a convolution of integers read and write: buffers in place of addresses, whatever the algorithm.
#include <vector>

#include "ops/conv/conv_int8_program.h"
#include "ops/lower.h"

namespace lathe {

struct ConvInt8Buffers {
  BufferId source, packed, init, target;
  std::vector<BufferId> operands;
  BufferId terms = BufferId::none;  // where products are crossed
  BufferId large = BufferId::none;  // where they are halved

  ConvInt8Arguments bind(const StepArgs& args, const void* next_weights) const {
    ConvInt8Arguments arguments;
    arguments.source = args.at<const void>(source);
    arguments.weights = args.at<const void>(packed);
    arguments.init = args.at<const int32_t>(init);
    if (terms != BufferId::none) arguments.terms = args.at<const int32_t>(terms);
    if (large != BufferId::none) arguments.large = args.at<const LargeBytes>(large);
    arguments.target = args.at<void>(target);
    for (size_t i = 0; i < operands.size(); ++i) arguments.operands[i] = args.at<const void>(operands[i]);
    arguments.next_weights = next_weights;
    arguments.is_first = args.begins_run();
    return arguments;
  }
};

}  // namespace lathe
