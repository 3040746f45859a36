#include "jit/kernels/quadrant_sums.h"

#include <algorithm>
#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

class QuadrantSumsEmitter : public Emitter {
 public:
  explicit QuadrantSumsEmitter(const QuadrantSumsPlan& plan) : Emitter(plan.isa), plan_(plan) {
    for (size_t i = 0; i < plan.sums.size(); ++i) out_.push_back(claim_gpr("sum"));
  }

  std::shared_ptr<const CodePages> emit() {
    begin();
    for (size_t i = 0; i < in_.size(); ++i)
      mov(in_[i], ptr[args_ + offsetof(QuadrantSumsArgs, in) + 8 * static_cast<int>(i)]);
    for (size_t i = 0; i < out_.size(); ++i)
      mov(out_[i], ptr[args_ + offsetof(QuadrantSumsArgs, out) + 8 * static_cast<int>(i)]);
    Xbyak::Label next_row, next_vector;
    L(next_row);
    xor_(in_at_, in_at_);
    xor_(out_at_, out_at_);
    mov(vectors_, ptr[args_ + offsetof(QuadrantSumsArgs, vectors)]);
    align(32);
    L(next_vector);
    emit_vector();
    add(in_at_, ptr[args_ + offsetof(QuadrantSumsArgs, in_vector_bytes)]);
    add(out_at_, ptr[args_ + offsetof(QuadrantSumsArgs, out_vector_bytes)]);
    dec(vectors_);
    jnz(next_vector, T_NEAR);
    for (const Gpr& in : in_) add(in, ptr[args_ + offsetof(QuadrantSumsArgs, in_stride_bytes)]);
    for (const Gpr& out : out_) add(out, ptr[args_ + offsetof(QuadrantSumsArgs, out_stride_bytes)]);
    dec(qword[args_ + offsetof(QuadrantSumsArgs, rows)]);
    jnz(next_row, T_NEAR);
    end();
    return finish(plan_.key());
  }

 private:
  void emit_vector() {
    for (size_t i = 0; i < in_.size(); ++i) load(value_[i], in_[i] + in_at_);
    for (size_t i = 0; i < out_.size(); ++i) {
      const QuadrantSum& sum = plan_.sums[i];
      // A quadrant with a plus sign comes first, if there is one.
      size_t first = static_cast<size_t>(std::max_element(sum.begin(), sum.end()) - sum.begin());
      Vec result = value_[first];
      if (sum[first] <= 0) {
        zero(sum_[i]);
        result = sum_[i];
        first = sum.size();
      }
      for (size_t q = 0; q < sum.size(); ++q) {
        if (q == first || sum[q] == 0) continue;
        if (sum[q] > 0) {
          vaddps(sum_[i], result, value_[q]);
        } else {
          vsubps(sum_[i], result, value_[q]);
        }
        result = sum_[i];
      }
      store(out_[i] + out_at_, result);
    }
  }

  const QuadrantSumsPlan plan_;
  const Gpr args_ = argument(0);
  const Gpr in_at_ = claim_gpr("byte of the row"), out_at_ = claim_gpr("byte of the sums' row");
  const Gpr vectors_ = claim_gpr("vectors left");
  const std::array<Gpr, 4> in_ = {claim_gpr("in"), claim_gpr("in"), claim_gpr("in"), claim_gpr("in")};
  std::vector<Gpr> out_;
  const std::vector<Vec> value_ = claim_vecs("value", 4);
  const std::vector<Vec> sum_ = claim_vecs("sum", QuadrantSumsPlan::kMostSums);
};

}  // namespace

bool QuadrantSumsPlan::is_valid() const {
  return !sums.empty() && sums.size() <= size_t{kMostSums} &&
         std::all_of(sums.begin(), sums.end(), [](const QuadrantSum& sum) { return sum != QuadrantSum{}; });
}

std::string QuadrantSumsPlan::key() const {
  std::string text = "quadrant_sums " + std::string(name_of(isa));
  for (const QuadrantSum& sum : sums) {
    text += ' ';
    for (const int sign : sum) text += sign == 0 ? '0' : sign > 0 ? '+' : '-';
  }
  return text;
}

QuadrantSums quadrant_sums(const QuadrantSumsPlan& plan) {
  if (!plan.is_valid()) throw JitError("no such sums: " + plan.key());
  return QuadrantSums(cached_code(plan.key(), [&] { return QuadrantSumsEmitter(plan).emit(); }));
}

}  // namespace lathe
