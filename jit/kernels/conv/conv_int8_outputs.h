#pragma once
// How kernels of integer convolutions finish their int32 sums in registers, and store them. Their emitters derive from
// it.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "jit/expression/epilogue.h"
#include "jit/kernels/common/int8_lanes.h"
#include "jit/kernels/conv/conv_epilogue.h"

namespace lathe {

class ConvInt8Outputs : public Int8Emitter {
 protected:
  // Without an expression sums are stored as they are. Both outlive the emitter.
  ConvInt8Outputs(Isa isa, const ConvEpilogue& epilogue, const Int8Store& store,
                  BytesTimesConstants bytes = BytesTimesConstants::multiplied);

  // Registers that finishing and storing clobber.
  int temps_needed() const;
  // Pixels from this one on that lie behind each other and are stored together: 4, 2 or 1. `stores`: their places in
  // bytes.
  int stored_together(std::span<const int32_t> stores, int pixel) const;

  // The sum becomes what is stored, still as float32, in so many parts, one after the other. `load`: an operand of the
  // epilogue, by load_operand().
  size_t parts_of_sum() const { return epilogue_ ? epilogue_->parts() + 1 : 0; }
  void finish_sum(size_t part, const Vec& sum, std::span<const Vec> temps,
                  const std::function<void(size_t operand, const Vec& into)>& load);
  void finish_sum(const Vec& sum, std::span<const Vec> temps,
                  const std::function<void(size_t operand, const Vec& into)>& load) {
    for (size_t part = 0; part < parts_of_sum(); ++part) finish_sum(part, sum, temps, load);
  }
  void store_finished(const Xbyak::RegExp& at, std::span<const Vec> sums, std::span<const Vec> temps);

  int operand_bytes(size_t operand) const;  // of an element
  void load_operand(size_t operand, const Vec& into, const Xbyak::RegExp& at);

  // Call once, behind the code's last instruction.
  void emit_output_constants();

 private:
  void load_bytes(size_t operand, const Vec& into, const Xbyak::RegExp& at);
  DType operand_type(size_t operand) const { return epilogue_plan_.expression->inputs[operand + 1]; }

  const ConvEpilogue& epilogue_plan_;
  const Int8Store& store_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
};

}  // namespace lathe
