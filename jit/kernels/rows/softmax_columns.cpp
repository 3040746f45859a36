// Softmax over an axis with a stride: vectors run across it.
#include <cstddef>

#include "jit/kernels/rows/softmax_emitter.h"

namespace lathe {
namespace {

constexpr int kColumnVectors = 4;

class SoftmaxColumnsEmitter : public SoftmaxEmitter {
 public:
  explicit SoftmaxColumnsEmitter(const SoftmaxPlan& plan) : SoftmaxEmitter(plan) {}

  void emit() {
    claim_operands();
    stride_ = claim_gpr("stride");
    at_from_ = claim_gpr("at from");
    at_to_ = claim_gpr("at to");
    if (plan_.keeps_columns) at_kept_ = claim_gpr("at kept");
    begin();
    load_operands();
    mov(stride_, ptr[args_ + offsetof(SoftmaxArgs, stride_bytes)]);
    claim_functions(2 * (kColumnVectors - 1));
    claim_columns();
    emit_columns();
    end();
    emit_constants();
  }

 private:
  // Some vectors side by side, so that a line of memory is read whole and sums wait for each other less.
  void claim_columns() {
    column_tops_ = {top_};
    column_sums_ = {sum_};
    for (int i = 1; i < kColumnVectors && free_vecs() >= 2; ++i) {
      column_tops_.push_back(claim_vec("maximum of columns"));
      column_sums_.push_back(claim_vec("sum of columns"));
    }
  }

  void emit_columns() {
    for_columns(columns_, offset_, left_, static_cast<int>(column_tops_.size()), [&](int vectors, bool is_tail) {
      const auto each = [&](auto body) {
        for (int i = 0; i < vectors; ++i) {
          const auto slot = static_cast<size_t>(i);
          body(i * vec_bytes(), column_tops_[slot], column_sums_[slot]);
        }
      };
      each([&](int, const Vec& top, const Vec&) { set_all(top, kLowest, temp_); });
      along_axis([&] {
        each([&](int at, const Vec& top, const Vec&) {
          load_part(x_, at_from_ + at, is_tail);
          vmaxps(top, top, x_);
          if (plan_.keeps_columns) store(at_kept_ + at, x_);
        });
      });
      each([&](int, const Vec&, const Vec& sum) { zero(sum); });
      along_axis([&] {
        each([&](int at, const Vec& top, const Vec& sum) {
          load_waiting(at_from_ + at, at, is_tail);
          if (plan_.keeps_columns) prefetch(at, vectors);
          vsubps(x_, x_, top);
          exponential(x_);
          vaddps(sum, sum, x_);
          if (plan_.is_log) return;
          plan_.keeps_columns ? store(at_kept_ + at, x_) : store_part(at_to_ + at, x_, is_tail);
        });
      });
      each([&](int, const Vec&, const Vec& sum) { finish_sum(sum); });
      along_axis([&] {
        each([&](int at, const Vec& top, const Vec& sum) {
          const Gpr& from = plan_.keeps_columns ? at_kept_ : plan_.is_log ? at_from_ : at_to_;
          scale(from + at, at_to_ + at, top, sum, is_tail);
        });
      });
    });
  }

  // What the first pass has seen.
  void load_waiting(const Xbyak::RegExp& from, int at, bool is_tail) {
    plan_.keeps_columns ? load(x_, at_kept_ + at) : load_part(x_, from, is_tail);
  }

  // The next columns, and where these go: both ways hide behind the exponentials. Where L1 holds a column, such lines
  // would drive it out.
  void prefetch(int at, int vectors) {
    prefetcht0(ptr[at_from_ + at + vectors * vec_bytes()]);
    prefetchw(ptr[at_to_ + at]);
  }

  template <class Body>
  void along_axis(Body body) {
    lea(at_from_, ptr[from_ + offset_]);
    lea(at_to_, ptr[to_ + offset_]);
    if (plan_.keeps_columns) mov(at_kept_, ptr[args_ + offsetof(SoftmaxArgs, row)]);
    mov(temp_, rows_);
    loop_down(temp_, [&] {
      body();
      add(at_from_, stride_);
      add(at_to_, stride_);
      if (plan_.keeps_columns) add(at_kept_, static_cast<int>(column_tops_.size()) * vec_bytes());
    });
  }

  Gpr stride_, at_from_, at_to_, at_kept_;
  std::vector<Vec> column_tops_, column_sums_;
};

}  // namespace

std::shared_ptr<const CodePages> emit_softmax_columns(const SoftmaxPlan& plan, const std::string& key) {
  SoftmaxColumnsEmitter emitter(plan);
  emitter.emit();
  return emitter.finish(key);
}

}  // namespace lathe
