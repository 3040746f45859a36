// RNN, GRU and LSTM.
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/recurrent/recurrent.h"
#include "ops/recurrent/recurrent_lower.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

struct Operands {
  RecurrentSpec spec;
  RecurrentExtents extents;
  std::vector<double> x, w, r, b, p;  // b and p: empty when absent
  std::vector<int64_t> lengths;       // by batch
};

// One direction of one batch entry.
class Walk {
 public:
  Walk(const Operands& operands, int64_t direction, int64_t entry, std::vector<double>& h, std::vector<double>& c)
      : o_(operands), d_(direction), entry_(entry), h_(h), c_(c), hidden_(operands.extents.hidden) {}

  void step(int64_t t) {
    const std::vector<double> h = h_;
    const RecurrentActivation* f = o_.spec.activations_of(d_);
    for (int64_t j = 0; j < hidden_; ++j) {
      if (o_.spec.cell == RecurrentCell::rnn) next(j) = apply(f[0], clip(from_x(t, 0, j) + from_h(h, 0, j)));
      if (o_.spec.cell == RecurrentCell::gru) step_gru(t, j, h, f);
      if (o_.spec.cell == RecurrentCell::lstm) step_lstm(t, j, h, f);
    }
  }

 private:
  double& next(int64_t j) { return h_[static_cast<size_t>(j)]; }
  double clip(double x) const {
    return o_.spec.clip > 0 ? std::clamp(x, -double{o_.spec.clip}, double{o_.spec.clip}) : x;
  }
  int64_t row(int64_t gate, int64_t j) const { return (d_ * o_.spec.gates + gate) * hidden_ + j; }
  double bias(int64_t gate, int64_t j, bool recurrent) const {
    if (o_.b.empty()) return 0;
    const int64_t half = o_.spec.gates * hidden_;
    return o_.b[static_cast<size_t>(d_ * 2 * half + (recurrent ? half : 0) + gate * hidden_ + j)];
  }
  double from_x(int64_t t, int64_t gate, int64_t j) const {
    const RecurrentExtents& e = o_.extents;
    const int64_t at = (o_.spec.is_batch_first ? entry_ * e.steps + t : t * e.batch + entry_) * e.input;
    double sum = bias(gate, j, false);
    for (int64_t i = 0; i < e.input; ++i) {
      sum += o_.x[static_cast<size_t>(at + i)] * o_.w[static_cast<size_t>(row(gate, j) * e.input + i)];
    }
    return sum;
  }
  double from_h(const std::vector<double>& h, int64_t gate, int64_t j) const {
    double sum = bias(gate, j, true);
    for (int64_t i = 0; i < hidden_; ++i) {
      sum += h[static_cast<size_t>(i)] * o_.r[static_cast<size_t>(row(gate, j) * hidden_ + i)];
    }
    return sum;
  }

  void step_gru(int64_t t, int64_t j, const std::vector<double>& h, const RecurrentActivation* f) {
    const double z = apply(f[0], clip(from_x(t, 0, j) + from_h(h, 0, j)));
    double inner = 0;
    if (o_.spec.is_linear_before_reset) {
      inner = reset(t, j, h, f) * from_h(h, 2, j);
    } else {
      if (j == 0) {  // all reset gates are needed by each of the hidden units
        reset_h_ = h;
        for (int64_t i = 0; i < hidden_; ++i) reset_h_[static_cast<size_t>(i)] *= reset(t, i, h, f);
      }
      inner = from_h(reset_h_, 2, j);
    }
    next(j) = (1 - z) * apply(f[1], clip(from_x(t, 2, j) + inner)) + z * h[static_cast<size_t>(j)];
  }
  double reset(int64_t t, int64_t j, const std::vector<double>& h, const RecurrentActivation* f) const {
    return apply(f[0], clip(from_x(t, 1, j) + from_h(h, 1, j)));
  }

  void step_lstm(int64_t t, int64_t j, const std::vector<double>& h, const RecurrentActivation* f) {
    LstmUnit unit;
    for (int64_t gate = 0; gate < 4; ++gate) unit.sums[gate] = from_x(t, gate, j) + from_h(h, gate, j);
    for (int64_t which = 0; which < 3 && !o_.p.empty(); ++which) {
      unit.peepholes[which] = o_.p[static_cast<size_t>((d_ * 3 + which) * hidden_ + j)];
    }
    next(j) = lathe::step(o_.spec, f, unit, c_[static_cast<size_t>(j)]);
  }

  const Operands& o_;
  int64_t d_, entry_;
  std::vector<double>&h_, &c_, reset_h_;
  int64_t hidden_;
};

Operands operands_of(const ReferenceContext& context) {
  Operands o;
  o.spec = recurrent_spec(context.node);
  o.extents = recurrent_extents(context.node, o.spec, context.inputs[0].dims(), context.inputs[1].dims(),
                                context.inputs[2].dims());
  o.x = reals_of(context.inputs[0]);
  o.w = reals_of(context.inputs[1]);
  o.r = reals_of(context.inputs[2]);
  o.b = optional_reals(context, o.spec, o.extents, 3, "B");
  if (o.spec.cell == RecurrentCell::lstm) o.p = optional_reals(context, o.spec, o.extents, 7, "P");
  o.lengths = sequence_lengths(context, o.spec, o.extents);
  return o;
}

void run_recurrent(ReferenceContext& context) {
  const Operands o = operands_of(context);
  const RecurrentExtents& e = o.extents;
  const DType dtype = context.inputs[0].dtype();
  const bool first = o.spec.is_batch_first;
  Tensor y = make_output(context, dtype, recurrent_dims(o.spec, e, "Y"));
  Tensor last_h = make_output(context, dtype, recurrent_dims(o.spec, e, "Y_h")), last_c = last_h.clone();
  const std::vector<double> h0 = optional_reals(context, o.spec, e, 5, "initial_h");
  const std::vector<double> c0 =
      o.spec.cell == RecurrentCell::lstm ? optional_reals(context, o.spec, e, 6, "initial_c") : std::vector<double>();
  for (int64_t d = 0; d < o.spec.directions; ++d) {
    for (int64_t b = 0; b < e.batch; ++b) {
      const int64_t state_at = (first ? b * o.spec.directions + d : d * e.batch + b) * e.hidden;
      const auto initial = [&](const std::vector<double>& from) {
        if (from.empty()) return std::vector<double>(static_cast<size_t>(e.hidden), 0);
        return std::vector<double>(from.begin() + state_at, from.begin() + state_at + e.hidden);
      };
      std::vector<double> h = initial(h0), c = initial(c0);
      Walk walk(o, d, b, h, c);
      const int64_t length = o.lengths[static_cast<size_t>(b)];
      for (int64_t i = 0; i < length; ++i) {
        const int64_t t = o.spec.is_reversed(d) ? length - 1 - i : i;
        walk.step(t);
        const int64_t row =
            first ? (b * e.steps + t) * o.spec.directions + d : (t * o.spec.directions + d) * e.batch + b;
        for (int64_t j = 0; j < e.hidden; ++j) store_real(y, row * e.hidden + j, h[static_cast<size_t>(j)]);
      }
      // Sequences of no steps end with zeros, whatever they began with, as ONNX Runtime has it.
      if (length == 0) h.assign(h.size(), 0), c.assign(c.size(), 0);
      for (int64_t j = 0; j < e.hidden; ++j) {
        store_real(last_h, state_at + j, h[static_cast<size_t>(j)]);
        store_real(last_c, state_at + j, c[static_cast<size_t>(j)]);
      }
    }
  }
  Tensor* results[] = {&y, &last_h, &last_c};
  for (size_t i = 0; i < context.outputs.size() && i < 3; ++i) context.outputs[i] = std::move(*results[i]);
}

OpDef recurrent(const char* name, int since, int until) {
  using Kind = AttributeSpec::Kind;
  const std::string_view cell = name;
  std::vector<AttributeSpec> attributes{{"activations", Kind::strings},   {"activation_alpha", Kind::reals},
                                        {"activation_beta", Kind::reals}, {"clip", Kind::real},
                                        {"direction", Kind::string},      {"hidden_size", Kind::integer}};
  if (since < 7) attributes.push_back({"output_sequence", Kind::integer});
  if (since >= 14) attributes.push_back({"layout", Kind::integer});
  if (cell == "LSTM") attributes.push_back({"input_forget", Kind::integer});
  if (cell == "GRU" && since >= 3) attributes.push_back({"linear_before_reset", Kind::integer});
  return {.schema = {.name = name,
                     .since = since,
                     .until = until,
                     .min_inputs = 3,
                     .max_inputs = cell == "LSTM" ? 8 : 6,
                     .min_outputs = 0,
                     .max_outputs = cell == "LSTM" ? 3 : 2,
                     .attributes = std::move(attributes),
                     .infer = infer_recurrent,
                     .reference = run_recurrent},
          .lower = lower_recurrent};
}

}  // namespace

std::vector<OpDef> recurrent_ops() {
  constexpr int kLatest = 1 << 20;
  return {recurrent("RNN", 1, 6),        recurrent("RNN", 7, 13), recurrent("RNN", 14, kLatest),
          recurrent("GRU", 1, 2),        recurrent("GRU", 3, 6),  recurrent("GRU", 7, 13),
          recurrent("GRU", 14, kLatest), recurrent("LSTM", 1, 6), recurrent("LSTM", 7, 13),
          recurrent("LSTM", 14, kLatest)};
}

}  // namespace lathe::ops
