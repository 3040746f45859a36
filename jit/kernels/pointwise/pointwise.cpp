#include "jit/kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "jit/expression/compiled_expression.h"
#include "jit/kernels/pointwise/pointwise_memory.h"

namespace lathe {
namespace {

using asmjit::Label;
using asmjit::x86::Gp;
using asmjit::x86::Mem;
using asmjit::x86::Vec;
namespace x86 = asmjit::x86;

class ThrowErrors : public asmjit::ErrorHandler {
 public:
  void handleError(asmjit::Error, const char* message, asmjit::BaseEmitter*) override {
    throw JitError(std::string("pointwise: ") + message);
  }
};

class PointwiseEmitter {
 public:
  explicit PointwiseEmitter(const PointwisePlan& plan) : plan_(plan) {
    asmjit::Environment environment(asmjit::Arch::kX64);
    code_.init(environment);
    code_.setErrorHandler(&errors_);
    code_.attach(&cc_);
  }

  std::shared_ptr<const CodePages> emit() {
    begin();
    row_loop([&] {
      load_row_constants();
      cc_.xor_(i_, i_);
      vector_loop(kUnroll);
      vector_loop(1);
      tail();
      next_row();
    });
    cc_.ret();
    cc_.endFunc();
    cc_.finalize();
    return finish();
  }

 private:
  // Vectors in a turn of the loop. The longest chains (a division behind a polynomial) take some 80 cycles, and what
  // waits fills the schedulers: as many vectors as have registers go through an expression side by side.
  static constexpr int kUnroll = 4;

  const Expression& expression() const { return plan_.expression; }
  int lanes() const { return vector_lanes(plan_.isa); }
  bool has_masks() const { return has_avx512(plan_.isa); }
  size_t input_count() const { return plan_.access.size(); }

  void begin() {
    asmjit::FuncNode* function = cc_.addFunc(asmjit::FuncSignatureT<void, const void*>());
    function->frame().setAvxEnabled();
    function->frame().setAvxCleanup();
    if (has_masks()) function->frame().setAvx512Enabled();
    args_ = cc_.newUIntPtr("args");
    function->setArg(0, args_);
    const auto held = std::count_if(plan_.access.begin(), plan_.access.end(),
                                    [](PointwiseAccess access) { return access != PointwiseAccess::contiguous; });
    const int others = static_cast<int>(held) + (plan_.masks_lanes ? 1 : 0);
    together_ = CompiledExpression::together(plan_.isa, expression(), others, kUnroll);
    body_.emplace(cc_, plan_.isa, expression(), together_);
    memory_.emplace(cc_, plan_.isa);
    out_ = load_argument("out", offsetof(PointwiseArgs, out));
    length_ = load_argument("length", offsetof(PointwiseArgs, length));
    rows_ = load_argument("rows", offsetof(PointwiseArgs, rows));
    strides_ = load_argument("strides", offsetof(PointwiseArgs, row_stride_bytes));
    const Gp table = load_argument("inputs", offsetof(PointwiseArgs, inputs));
    for (size_t k = 0; k < input_count(); ++k) {
      in_.push_back(cc_.newUIntPtr("in"));
      cc_.mov(in_[k], x86::qword_ptr(table, static_cast<int32_t>(k * 8)));
      // A vector for what stays the same along a row.
      held_.push_back(plan_.access[k] == PointwiseAccess::contiguous ? Vec() : body_->new_vec("held"));
    }
    i_ = cc_.newInt64("i");
    left_ = cc_.newInt64("left");
    body_->hold_constants(others);
    if (!plan_.masks_lanes) return;
    lane_mask_ = body_->new_vec("lane_mask");
    cc_.vmovups(lane_mask_, x86::ptr(load_argument("mask", offsetof(PointwiseArgs, lane_mask))));
  }

  Gp load_argument(const char* role, size_t offset) {
    const Gp reg = cc_.newUIntPtr(role);
    cc_.mov(reg, x86::qword_ptr(args_, static_cast<int32_t>(offset)));
    return reg;
  }

  template <class Body>
  void row_loop(Body body) {
    const Label top = cc_.newLabel();
    cc_.align(asmjit::AlignMode::kCode, 16);
    cc_.bind(top);
    body();
    cc_.dec(rows_);
    cc_.jnz(top);
  }

  void load_row_constants() {
    for (size_t k = 0; k < input_count(); ++k) {
      if (plan_.access[k] == PointwiseAccess::scalar)
        memory_->load_scalar(expression().inputs[k], held_[k], x86::ptr(in_[k]));
      if (plan_.access[k] == PointwiseAccess::repeated)
        memory_->load(expression().inputs[k], held_[k], x86::ptr(in_[k]), {});
    }
  }

  // Vectors while at least `unroll` of them are left.
  void vector_loop(int unroll) {
    const Label top = cc_.newLabel(), done = cc_.newLabel();
    const int step = unroll * lanes();
    cc_.mov(left_, length_);
    cc_.sub(left_, i_);
    cc_.cmp(left_, step);
    cc_.jl(done);
    cc_.align(asmjit::AlignMode::kCode, 16);
    cc_.bind(top);
    for (int u = 0; u < unroll; u += together_) vectors(std::min(together_, unroll - u), u * lanes(), {});
    cc_.add(i_, step);
    cc_.sub(left_, step);
    cc_.cmp(left_, step);
    cc_.jge(top);
    cc_.bind(done);
  }

  Mem element(const Gp& base, DType dtype, int offset) const {
    const int bytes = element_bytes(dtype);
    const uint32_t shift = bytes == 8 ? 3 : bytes == 4 ? 2 : bytes == 2 ? 1 : 0;
    return x86::ptr(base, i_, shift, offset * bytes);
  }

  void vectors(int count, int first, const Lanes& there) {
    const std::vector<Vec> results = body_->apply(count, [&](int which, int slot, const Vec& into) {
      const auto k = static_cast<size_t>(slot);
      const DType dtype = expression().inputs[k];
      if (plan_.access[k] != PointwiseAccess::contiguous)
        cc_.vmovaps(into, held_[k]);
      else
        memory_->load(dtype, into, element(in_[k], dtype, first + which * lanes()), there);
    });
    for (int which = 0; which < count; ++which) {
      const Vec& result = results[static_cast<size_t>(which)];
      if (plan_.masks_lanes) body_->bit_and(result, result, lane_mask_);
      memory_->store(expression().output, element(out_, expression().output, first + which * lanes()), result, there);
    }
  }
  void one_vector(const Lanes& there) { vectors(1, 0, there); }

  // The last length - i < lanes elements; `left_` holds their number.
  void tail() {
    const Label done = cc_.newLabel();
    cc_.test(left_, left_);
    cc_.jle(done);
    if (has_masks())
      opmask_tail();
    else if (is_four_bytes_wide())
      vector_mask_tail();
    else
      single_elements();
    cc_.bind(done);
  }

  void opmask_tail() {
    const Gp bits = cc_.newInt32("bits"), ones = cc_.newInt32("ones");
    Lanes there{.kind = Lanes::Kind::masked, .opmask = cc_.newKw("there")};
    cc_.mov(ones, -1);
    cc_.bzhi(bits, ones, left_.r32());
    cc_.kmovw(there.opmask, bits);
    one_vector(there);
  }

  bool is_four_bytes_wide() const {
    for (size_t k = 0; k < input_count(); ++k)
      if (plan_.access[k] == PointwiseAccess::contiguous && expression().inputs[k] != DType::f32 &&
          expression().inputs[k] != DType::i32)
        return false;
    return expression().output == DType::f32 || expression().output == DType::i32;
  }

  void vector_mask_tail() {
    const int32_t ramp[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    Lanes there{.kind = Lanes::Kind::masked, .vector_mask = cc_.newYmm("there")};
    cc_.vmovd(there.vector_mask.xmm(), left_.r32());
    cc_.vpbroadcastd(there.vector_mask, there.vector_mask.xmm());
    cc_.vpcmpgtd(there.vector_mask, there.vector_mask, cc_.newConst(asmjit::ConstPoolScope::kLocal, ramp, sizeof ramp));
    one_vector(there);
  }

  void single_elements() {
    const Label top = cc_.newLabel();
    cc_.bind(top);
    one_vector({.kind = Lanes::Kind::one});
    cc_.inc(i_);
    cc_.dec(left_);
    cc_.jnz(top);
  }

  void next_row() {
    for (size_t k = 0; k < input_count(); ++k) cc_.add(in_[k], x86::qword_ptr(strides_, static_cast<int32_t>(k * 8)));
    cc_.add(out_, x86::qword_ptr(args_, offsetof(PointwiseArgs, out_row_stride_bytes)));
  }

  std::shared_ptr<const CodePages> finish() {
    code_.flatten();
    code_.resolveUnresolvedLinks();
    std::vector<std::byte> bytes(code_.codeSize());
    code_.copyFlattenedData(bytes.data(), bytes.size(), asmjit::CopySectionFlags::kPadSectionBuffer);
    return std::make_shared<const CodePages>(bytes.data(), bytes.size(), plan_.key());
  }

  const PointwisePlan& plan_;
  ThrowErrors errors_;
  asmjit::CodeHolder code_;
  x86::Compiler cc_;
  int together_ = 1;  // vectors
  std::optional<CompiledExpression> body_;
  std::optional<VectorMemory> memory_;
  Gp args_, out_, length_, rows_, strides_, i_, left_;
  std::vector<Gp> in_;
  std::vector<Vec> held_;
  Vec lane_mask_;
};

void check(const PointwisePlan& plan) {
  if (plan.access.size() != plan.expression.inputs.size())
    throw JitError("pointwise: accesses do not match the inputs");
  for (const DType dtype : plan.expression.inputs)
    if (!can_load(dtype)) throw JitError("pointwise: cannot load " + std::string(name_of(dtype)));
  if (!can_store(plan.expression.output))
    throw JitError("pointwise: cannot store " + std::string(name_of(plan.expression.output)));
}

}  // namespace

std::string PointwisePlan::key() const {
  std::string text = "pointwise." + std::string(name_of(has_avx512(isa) ? Isa::avx512 : Isa::avx2)) + " ";
  for (const PointwiseAccess each : access)
    text += each == PointwiseAccess::contiguous ? 'v' : each == PointwiseAccess::scalar ? 's' : 'r';
  return text + (masks_lanes ? " masked " : " ") + to_string(expression);
}

Kernel<void(const PointwiseArgs*)> pointwise_kernel(const PointwisePlan& plan) {
  check(plan);
  return Kernel<void(const PointwiseArgs*)>(cached_code(plan.key(), [&] { return PointwiseEmitter(plan).emit(); }));
}

}  // namespace lathe
