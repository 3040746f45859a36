// LinearAttention: softmax-free attention with a recurrent state.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/attention/linear_attention.h"
#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

enum Input : int { kQuery, kKey, kValue, kPast, kDecay, kRate };

template <class Context>
int64_t heads_of(const Context& context, const char* attribute) {
  const int64_t heads = context.node.attributes.get_int(attribute, 0);
  if (heads < 1) context.fail(std::string("attribute '") + attribute + "' is " + std::to_string(heads));
  return heads;
}

template <class Context>
void set_rule(const Context& context, LinearAttention& shape) {
  const std::string rule = context.node.attributes.get_string("update_rule", "gated_delta");
  shape.decays = rule == "gated" || rule == "gated_delta";
  shape.corrects = rule == "delta" || rule == "gated_delta";
  if (!shape.decays && !shape.corrects && rule != "linear") context.fail("attribute 'update_rule' is '" + rule + "'");
  shape.query_heads = heads_of(context, "q_num_heads");
  shape.heads = heads_of(context, "kv_num_heads");
  if (shape.query_heads % shape.heads != 0) {
    context.fail(std::to_string(shape.query_heads) + " query heads cannot share " + std::to_string(shape.heads));
  }
}

// Element counts of a row of an operand; fails naming it when rank or extents differ.
template <class Context>
int64_t row_of(const Context& context, const std::vector<Dims>& dims, int input, const char* name) {
  const Dims& given = dims[static_cast<size_t>(input)];
  const Dims& query = dims[kQuery];
  if (given.size() != 3 || given[0] != query[0] || given[1] != query[1]) {
    context.fail("input " + std::to_string(input) + " (" + name + ") is " + to_string(given) + ", the query " +
                 to_string(query));
  }
  return given[2];
}

// `dims`: of all six inputs, empty where absent.
template <class Context>
LinearAttention shape_of(const Context& context, const std::vector<Dims>& dims) {
  LinearAttention shape;
  set_rule(context, shape);
  if (dims[kQuery].size() != 3) context.fail("input 0 is " + to_string(dims[kQuery]) + ", expected rank 3");
  shape.batch = dims[kQuery][0];
  shape.steps = dims[kQuery][1];
  const int64_t query = row_of(context, dims, kQuery, "query"), key = row_of(context, dims, kKey, "key"),
                value = row_of(context, dims, kValue, "value");
  shape.key_size = query / shape.query_heads;
  shape.value_size = value / shape.heads;
  if (query % shape.query_heads != 0 || key != shape.heads * shape.key_size || value % shape.heads != 0) {
    context.fail("rows of " + std::to_string(query) + ", " + std::to_string(key) + " and " + std::to_string(value) +
                 " elements do not fit " + std::to_string(shape.query_heads) + " and " + std::to_string(shape.heads) +
                 " heads");
  }
  const Dims state{shape.batch, shape.heads, shape.key_size, shape.value_size};
  if (!dims[kPast].empty() && dims[kPast] != state) {
    context.fail("input 3 (past_state) is " + to_string(dims[kPast]) + ", expected " + to_string(state));
  }
  if (shape.decays) {
    if (dims[kDecay].empty()) context.fail("input 4 (decay) is missing");
    const int64_t decay = row_of(context, dims, kDecay, "decay");
    shape.has_decay_per_key = decay != shape.heads;
    if (shape.has_decay_per_key && decay != key) context.fail("input 4 (decay) is " + to_string(dims[kDecay]));
  }
  if (shape.corrects) {
    if (dims[kRate].empty()) context.fail("input 5 (beta) is missing");
    const int64_t rate = row_of(context, dims, kRate, "beta");
    shape.has_rate_per_head = rate != 1;
    if (shape.has_rate_per_head && rate != shape.heads) context.fail("input 5 (beta) is " + to_string(dims[kRate]));
  }
  const double scale = context.node.attributes.get_float("scale", 0);
  shape.scale = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(shape.key_size));
  return shape;
}

void infer_linear_attention(InferContext& context) {
  LinearAttention shape;
  set_rule(context, shape);
  const TensorType &query = context.input(kQuery), &value = context.input(kValue);
  TensorType output = ranked(query.dtype, 3);
  TensorType state = ranked(context.has_input(kPast) ? context.input(kPast).dtype : query.dtype, 4);
  state.dims[1] = known_dim(shape.heads);
  for (const int i : {kQuery, kKey, kValue}) {
    if (context.input(i).has_rank && context.input(i).rank() != 3) {
      context.fail("input " + std::to_string(i) + " has rank " + std::to_string(context.input(i).rank()) +
                   ", expected 3");
    }
  }
  if (query.has_rank) {
    output.dims[0] = state.dims[0] = query.dims[0];
    output.dims[1] = query.dims[1];
    if (query.dims[2].known()) state.dims[2] = known_dim(query.dims[2].extent / shape.query_heads);
  }
  if (value.has_rank && value.dims[2].known()) {
    const int64_t size = value.dims[2].extent / shape.heads;
    state.dims[3] = known_dim(size);
    if (const auto row = product_of(size, shape.query_heads)) output.dims[2] = known_dim(*row);
  }
  bool is_static = true;
  std::vector<Dims> dims(6);
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    is_static = is_static && context.input(i).is_static();
    if (is_static) dims[static_cast<size_t>(i)] = context.input(i).extents();
  }
  if (is_static) shape_of(context, dims);
  context.set_output(0, std::move(output));
  context.set_output(1, std::move(state));
}

void run_linear_attention(ReferenceContext& context) {
  std::vector<Dims> dims(6);
  std::vector<std::vector<double>> values(6);
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (!context.has_input(i)) continue;
    dims[i] = context.inputs[i].dims();
    values[i] = reals_of(context.inputs[i]);
  }
  const LinearAttention shape = shape_of(context, dims);
  const Dims out_dims{shape.batch, shape.steps, shape.query_heads * shape.value_size};
  const Dims state_dims{shape.batch, shape.heads, shape.key_size, shape.value_size};
  const DType dtype = context.inputs[0].dtype(),
              state_dtype = context.has_input(kPast) ? context.inputs[kPast].dtype() : dtype;
  make_output(context, dtype, out_dims);  // checks the sizes first
  make_output(context, state_dtype, state_dims);
  std::vector<double> output(static_cast<size_t>(checked_elements(out_dims)));
  std::vector<double> state = std::move(values[kPast]), scratch(static_cast<size_t>(shape.value_size));
  state.resize(static_cast<size_t>(checked_elements(state_dims)), 0);
  const LinearAttentionOperands<double> operands{values[kQuery].data(), values[kKey].data(),  values[kValue].data(),
                                                 values[kDecay].data(), values[kRate].data(), state.data(),
                                                 output.data(),         scratch.data()};
  for (int64_t entry = 0; entry < shape.batch; ++entry) {
    for (int64_t head = 0; head < shape.heads; ++head) attend_linearly(shape, operands, entry, head);
  }
  context.outputs[0] = tensor_of_reals(context, dtype, out_dims, output);
  if (context.outputs.size() > 1) context.outputs[1] = tensor_of_reals(context, state_dtype, state_dims, state);
}

bool lower_linear_attention(LowerContext& context) {
  std::vector<Dims> dims(6);
  std::vector<BufferId> buffers(6, BufferId::none);
  Step step;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    if (context.input_type(i).dtype != DType::f32) return false;
    dims[static_cast<size_t>(i)] = context.input_type(i).extents();
    buffers[static_cast<size_t>(i)] = context.buffer(context.input(i));
    step.reads.push_back(buffers[static_cast<size_t>(i)]);
  }
  const LinearAttention shape = shape_of(InferContext(context.node, {}, {}), dims);
  const int64_t states = shape.batch * shape.heads, state_size = shape.key_size * shape.value_size;
  const auto result_of = [&](int i, int64_t elements) {
    return context.has_output(i) ? context.buffer(context.output(i))
                                 : context.scratch(checked_bytes(DType::f32, {elements}));
  };
  const BufferId output = result_of(0, shape.batch * shape.steps * shape.query_heads * shape.value_size);
  const BufferId state = result_of(1, states * state_size);
  step.kernel = "recurrence";
  step.flop = static_cast<double>(states * shape.steps * state_size) *
              static_cast<double>(5 + 2 * (shape.query_heads / shape.heads));
  step.threads =
      static_cast<int>(std::clamp<int64_t>(states, 1, worthwhile_threads(step.flop, context.target.threads)));
  const BufferId scratch = context.thread_scratch(checked_bytes(DType::f32, {shape.value_size}));
  step.reads.push_back(scratch);
  step.writes = {output, state, scratch};
  step.bytes = 8.0 * static_cast<double>(states * state_size);
  step.run = [=, threads = step.threads](const StepArgs& args) {
    const auto input = [&](Input i) {
      return buffers[i] == BufferId::none ? nullptr : args.at<const float>(buffers[i]);
    };
    const LinearAttentionOperands<float> operands{
        input(kQuery), input(kKey),           input(kValue),          input(kDecay),
        input(kRate),  args.at<float>(state), args.at<float>(output), args.own<float>(scratch)};
    const Range range = split_evenly(states, args.share, threads);
    for (long at = range.begin; at < range.end; ++at) {
      float* own = operands.state + at * state_size;
      const size_t bytes = static_cast<size_t>(state_size) * sizeof(float);
      if (const float* past = input(kPast); past == nullptr) {
        std::memset(own, 0, bytes);
      } else {
        std::memcpy(own, past + at * state_size, bytes);
      }
      attend_linearly(shape, operands, at / shape.heads, at % shape.heads);
    }
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> linear_attention_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "LinearAttention",
                      .since = 27,
                      .min_inputs = 3,
                      .max_inputs = 6,
                      .max_outputs = 2,
                      .attributes = {{"chunk_size", Kind::integer},
                                     {"kv_num_heads", Kind::integer, true},
                                     {"q_num_heads", Kind::integer, true},
                                     {"scale", Kind::real},
                                     {"update_rule", Kind::string}},
                      .infer = infer_linear_attention,
                      .reference = run_linear_attention},
           .lower = lower_linear_attention}};
}

}  // namespace lathe::ops
