#pragma once
// What lets a selection read a row at the speed of memory: groups of elements are compared with a threshold and those
// that have one beyond it are listed, without a branch; of these the elements beyond are kept.
//
// Elements compare as keys: signed numbers of which the larger is chosen first. order_key() is that of float32.
#include <bit>
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

enum class SelectOrder : uint8_t { largest_first, smallest_first };

// Of floating point, largest first, by its bits; those of `infinity` are the last whose magnitude is not NaN. NaN
// counts as larger than any number, as in NumPy; -0 equals +0.
template <class Key, class Bits>
Key float_key(Bits bits, Bits infinity) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const Bits magnitude = bits & static_cast<Bits>(~kSign);
  const Key of_magnitude =
      magnitude > infinity ? static_cast<Key>(static_cast<Bits>(~kSign)) : static_cast<Key>(magnitude);
  const bool is_below = (bits & kSign) != 0 && magnitude != 0 && magnitude <= infinity;
  return is_below ? ~of_magnitude : of_magnitude;
}

inline constexpr uint32_t kFloat32Infinity = 0x7f800000U;

inline int32_t order_key(float x, SelectOrder order) {
  const auto key = float_key<int32_t>(std::bit_cast<uint32_t>(x), kFloat32Infinity);
  return order == SelectOrder::largest_first ? key : ~key;
}

// A float32 that no element with a larger key fails against in FindGroupsFn: the inverse of order_key().
inline float threshold_of(int32_t key, SelectOrder order) {
  if (order == SelectOrder::smallest_first) key = ~key;
  // No element has this one, which would be -0 and let no 0 pass: the next one has the same above it.
  if (order == SelectOrder::largest_first && key == -1) key = -2;
  return std::bit_cast<float>(key < 0 ? static_cast<uint32_t>(key) ^ 0x7fffffffU : static_cast<uint32_t>(key));
}

constexpr int kSelectVectors = 2;  // of a group: what is kept is looked for in all of its vectors
inline int64_t select_group(Isa isa) { return int64_t{kSelectVectors} * vector_lanes(isa); }

// Lists those of a row's whole groups, by number, that have an element beyond the threshold or, with a NaN on either
// side, may have one. Gives their count. `list`: room for all groups.
using FindGroupsFn = int64_t(const float* row, int64_t groups, const float* threshold, int32_t* list);
Kernel<FindGroupsFn> find_groups_kernel(Isa isa, SelectOrder order);

// Of each group of so many vectors the first elements, lane by lane: `groups` vectors. Of k different groups and lanes
// each has an element that is not behind the k-th of all these. NaN is passed over; a lane of nothing else gives what
// comes behind all numbers.
struct GroupFirstsArgs {
  const float* row;
  int64_t groups;    // >= 1
  int64_t quarters;  // vectors of a group / 4. >= 1
  float* to;
};
constexpr int kGroupFirstsVectors = 4;
using GroupFirstsFn = void(const GroupFirstsArgs*);
Kernel<GroupFirstsFn> group_firsts_kernel(Isa isa, SelectOrder order);

// Appends the elements whose keys are above `threshold`, in their order, and gives how many they are. Whole vectors are
// written: there must be room for one behind the last.
struct KeepArgs {
  const void* from;       // the row, or keys
  const int32_t* places;  // of_row: the listed groups; of_keys: of the keys
  int64_t count;          // of groups; of vectors of keys. >= 1
  int32_t threshold;
  int32_t first_place;  // of_row: of its first element
  int32_t* to_keys;
  int32_t* to_places;
};
enum class KeepSource : uint8_t {
  row_largest,   // float32, in the order of SelectOrder
  row_smallest,  //
  keys           // and their places. The result may take their place.
};
using KeepFn = int64_t(const KeepArgs*);
Kernel<KeepFn> keep_beyond_kernel(Isa isa, KeepSource source);

}  // namespace lathe
