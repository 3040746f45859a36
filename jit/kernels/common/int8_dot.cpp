#include "jit/kernels/common/int8_dot.h"

namespace lathe {

std::string to_string(Int8Dot dot) {
  switch (dot) {
    case Int8Dot::u8s8:
      return "u8s8";
    case Int8Dot::s8u8:
      return "s8u8";
    case Int8Dot::u8s7:
      return "u8s7";
    case Int8Dot::s8s8:
      return "s8s8";
    case Int8Dot::u8s8_halved:
      return "u8s8_halved";
    case Int8Dot::s8u8_halved:
      return "s8u8_halved";
    case Int8Dot::crossed:
      return "crossed";
    default:
      return "pairs";
  }
}

}  // namespace lathe
