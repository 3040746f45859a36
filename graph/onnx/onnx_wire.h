#pragma once
// A walk over the bytes of a ModelProto or TensorProto that takes large element data out before protobuf sees them, so
// that weights stay where the file is mapped and parsing costs time and memory for the rest only.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lathe::wire {

// Element data that was cut out of a TensorProto.
struct Payload {
  std::string_view bytes;
  int field;  // of TensorProto: 9 raw_data, 4 packed float_data, 10 packed double_data
};

// A smaller message of the same type. A tensor whose data was cut carries kPayloadField = index in `payloads` instead.
// (A model that brings such a field itself merely reads another of its own payloads, checked like any other.)
struct Skeleton {
  std::string bytes;
  std::vector<Payload> payloads;
};

inline constexpr int kPayloadField = 536'000'123;
inline constexpr size_t kSmallestPayload = 1024;  // bytes; below, copying is cheaper than a view

// Throws Error(invalid_model) on malformed bytes, Error(limit) when a graph is one of more than `depth` nested ones
// (the main graph included) or the skeleton reaches protobuf's 2 GiB.
Skeleton skeleton_of_model(std::string_view bytes, int depth);
Skeleton skeleton_of_tensor(std::string_view bytes);

}  // namespace lathe::wire
