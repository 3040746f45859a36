#pragma once
// Graphs of quantized groups, and what the passes of loading make of them.
#include <string_view>
#include <vector>

#include "tests/ops/pass_net.h"

namespace lathe::testing {

// One scale for each of `count` channels.
Tensor scales(int64_t count, float factor = 1);
Tensor bias_of(int64_t count, int32_t step);

struct QuantizedNet : PassNet {
  ValueId bytes(DType dtype, const Dims& dims);
  ValueId quantize(ValueId x, float scale, uint8_t zero);
  ValueId dequantize(ValueId q, float scale, uint8_t zero);
  ValueId quantized(ValueId x, float scale, uint8_t zero);
  ValueId weights(const Dims& dims, int64_t axis);
  // What `type` makes of an input whose scale is found at run time, and of weights, as numbers.
  ValueId dynamic(const char* type, const Dims& input_dims, const Dims& weight_dims, NamedAttributes attributes = {});
};

int count(const Graph& graph, std::string_view op);

// The graph after all passes of loading.
Graph optimized(const QuantizedNet& net);

// Results of both graphs: `levels` is what one level of a quantized value on the way is worth in the result.
void expect_same_results(QuantizedNet& net, const Graph& after, double levels);

}  // namespace lathe::testing
