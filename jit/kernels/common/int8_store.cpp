#include "jit/kernels/common/int8_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jit/kernels/common/int8_dot.h"

namespace lathe {

std::string to_string(const Int8Store& how) {
  return std::string(name_of(how.dtype)) + "+" + std::to_string(how.zero) + (how.is_bounded ? "b" : "") +
         (how.gelu != 0 ? fmt::format(" gelu {}", how.gelu) : "") +
         (how.table.empty() ? "" : fmt::format(":{:02x}", fmt::join(how.table, "")));
}

bool has_byte_tables(Isa isa) {
  static const bool has_permutes = __builtin_cpu_supports("avx512vbmi") != 0;
  return has_wide_vnni(isa) && has_permutes;
}

}  // namespace lathe
