#pragma once
// The instruction sets that a test goes through: those of this machine whose code differs.
#include <vector>

#include "jit/kernels/common/int8_dot.h"
#include "src/base/cpu.h"

namespace lathe::testing {

inline std::vector<Isa> isas_here() {
  return has_avx512(usable_isa()) ? std::vector<Isa>{Isa::avx2, Isa::avx512} : std::vector<Isa>{Isa::avx2};
}

// Where products of bytes matter.
inline std::vector<Isa> int8_isas_here() {
  std::vector<Isa> isas = isas_here();
  for (const Isa isa : {Isa::avx2_vnni, Isa::avx512_vnni})
    if (is_usable(isa)) isas.push_back(isa);
  return isas;
}

// Where products of bfloat16 matter.
inline std::vector<Isa> bf16_isas_here() {
  std::vector<Isa> isas = isas_here();
  if (usable_isa() == Isa::avx512_bf16) isas.push_back(Isa::avx512_bf16);
  return isas;
}

}  // namespace lathe::testing
