#pragma once
// Channels of blocked values put together in any order.
#include <vector>

#include "ops/lower.h"

namespace lathe {

struct ChannelOrigin {
  ValueId value = ValueId::none;  // ValueId::none: this channel is in place already
  int64_t channel = 0;
};

// A step that fills `result`, channel by channel, from where `origins` says. False: elements of neither 8 nor 32
// bits, or layouts that the kernels lack. Requires: all values are blocked as the result is and have its extents but
// for the channels.
bool add_channel_gather_step(const LowerContext& context, ValueId result, const std::vector<ChannelOrigin>& origins);

}  // namespace lathe
