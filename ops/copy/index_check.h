#pragma once
// Tuples of indices that come with a run: checked in a step of its own on the calling thread, where an error can be
// reported, before the steps that use them.
#include <vector>

#include "ops/lower.h"

namespace lathe {

// `tuples` times extents.size() indices, each of its own extent; negative ones count from the end.
struct IndexTuples {
  BufferId buffer = BufferId::none;
  DType dtype = DType::i64;  // or i32
  int64_t tuples = 0;
  std::vector<int64_t> extents;
  Tensor constant;  // defined when they are known before any run

  int64_t depth() const { return static_cast<int64_t>(extents.size()); }
};

// Where the indices of operator input `input` are; nullopt: not int32 or int64.
std::optional<IndexTuples> index_tuples(const LowerContext& context, int input, std::vector<int64_t> extents);
// They are constants, and each is within its range.
bool are_known_within(const IndexTuples& indices);
// A step that throws Error(invalid_argument) for an index out of its range; none where that is known not to happen.
void add_index_check(LowerContext& context, const IndexTuples& indices);

// Index i of a tuple, counted from the front.
template <class Index>
int64_t from_front(Index index, int64_t extent) {
  return index < 0 ? static_cast<int64_t>(index) + extent : static_cast<int64_t>(index);
}

// Calls visit.template operator()<T>() with the indices' type.
template <class Visit>
auto visit_index_type(DType dtype, Visit visit) {
  return dtype == DType::i64 ? visit.template operator()<int64_t>() : visit.template operator()<int32_t>();
}
// Calls visit.template operator()<T>() with an unsigned type of so many bytes; false: none.
template <class Visit>
bool visit_width(int64_t bytes, Visit visit) {
  if (bytes == 1) return visit.template operator()<uint8_t>(), true;
  if (bytes == 2) return visit.template operator()<uint16_t>(), true;
  if (bytes == 4) return visit.template operator()<uint32_t>(), true;
  if (bytes == 8) return visit.template operator()<uint64_t>(), true;
  return false;
}

}  // namespace lathe
