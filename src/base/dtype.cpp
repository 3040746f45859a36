#include "lathe/dtype.h"

#include <array>

namespace lathe {
namespace {

enum class Kind : uint8_t { other, real, integer };

struct DTypeFacts {
  std::string_view name;
  int bits;
  Kind kind;
  bool is_signed;
};

// Indexed by DType.
constexpr std::array<DTypeFacts, kDTypeCount> kFacts = {{
    {"undefined", 0, Kind::other, false},    {"float32", 32, Kind::real, true},
    {"uint8", 8, Kind::integer, false},      {"int8", 8, Kind::integer, true},
    {"uint16", 16, Kind::integer, false},    {"int16", 16, Kind::integer, true},
    {"int32", 32, Kind::integer, true},      {"int64", 64, Kind::integer, true},
    {"string", 0, Kind::other, false},       {"bool", 8, Kind::other, false},
    {"float16", 16, Kind::real, true},       {"float64", 64, Kind::real, true},
    {"uint32", 32, Kind::integer, false},    {"uint64", 64, Kind::integer, false},
    {"complex64", 64, Kind::other, true},    {"complex128", 128, Kind::other, true},
    {"bfloat16", 16, Kind::real, true},      {"float8e4m3fn", 8, Kind::real, true},
    {"float8e4m3fnuz", 8, Kind::real, true}, {"float8e5m2", 8, Kind::real, true},
    {"float8e5m2fnuz", 8, Kind::real, true}, {"uint4", 4, Kind::integer, false},
    {"int4", 4, Kind::integer, true},        {"float4e2m1", 4, Kind::real, true},
    {"float8e8m0", 8, Kind::real, false},    {"uint2", 2, Kind::integer, false},
    {"int2", 2, Kind::integer, true},
}};

const DTypeFacts& facts_of(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return kFacts[index < kFacts.size() ? index : 0];
}

}  // namespace

int bits_of(DType dtype) { return facts_of(dtype).bits; }
std::string_view name_of(DType dtype) { return dtype == DType::object ? "object" : facts_of(dtype).name; }
bool is_float(DType dtype) { return facts_of(dtype).kind == Kind::real; }
bool is_integer(DType dtype) { return facts_of(dtype).kind == Kind::integer; }
bool is_signed(DType dtype) { return facts_of(dtype).is_signed; }
bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

}  // namespace lathe
