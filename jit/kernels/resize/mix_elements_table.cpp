#include <algorithm>

#include "jit/kernels/resize/mix_elements.h"

namespace lathe {
namespace {

// Sums from `begin` on: a vector of them, or as many as there are.
struct Group {
  size_t begin = 0, count = 0;
};

std::vector<Group> groups_of(size_t sums, size_t lanes, MixedRoom room) {
  if (sums < lanes) return {{0, sums}};
  std::vector<Group> groups;
  for (size_t begin = 0; begin < sums; begin += lanes) {
    const bool overlaps = begin + lanes > sums && room == MixedRoom::sums;
    groups.push_back({overlaps ? sums - lanes : begin, std::min(lanes, overlaps ? lanes : sums - begin)});
  }
  return groups;
}

std::vector<int32_t> mask_of(int64_t count, size_t lanes) {
  std::vector<int32_t> mask(lanes, 0);
  const auto set = static_cast<size_t>(std::clamp<int64_t>(count, 0, static_cast<int64_t>(lanes)));
  std::fill_n(mask.begin(), set, -1);
  return mask;
}

}  // namespace

MixElementsTable mix_elements_table(const MixTerms& terms, int64_t extent, Isa isa, MixedRoom room) {
  const auto lanes = static_cast<size_t>(vector_lanes(isa)), each = static_cast<size_t>(terms.terms);
  const auto width = static_cast<int64_t>(lanes);
  const std::vector<Group> groups = groups_of(static_cast<size_t>(terms.count()), lanes, room);
  // The leftmost place of each group, and how wide the widest is.
  std::vector<int64_t> first;
  int64_t reach = 0;
  for (const Group& group : groups) {
    const auto begin = terms.places.begin() + static_cast<int64_t>(group.begin * each);
    const auto [least, most] = std::minmax_element(begin, begin + static_cast<int64_t>(group.count * each));
    first.push_back(*least);
    reach = std::max<int64_t>(reach, *most - *least + 1);
  }
  MixElementsTable table;
  const int windows = reach <= width ? 1 : reach <= 2 * width ? 2 : 0;
  table.plan = {.isa = isa,
                .terms = terms.terms,
                .blends = terms.blends,
                .windows = windows,
                .has_short_row = extent < windows * width,
                .has_few_sums = terms.count() < width && room == MixedRoom::sums};
  table.sums = room == MixedRoom::sums ? terms.count() : static_cast<int64_t>(groups.size() * lanes);
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t base = windows == 0 ? 0 : std::min(first[g], std::max<int64_t>(extent - windows * width, 0));
    table.offsets.push_back(static_cast<int32_t>(base) * 4);
    for (size_t term = 0; term < each; ++term) {
      for (size_t lane = 0; lane < lanes; ++lane) {
        const bool is_there = lane < groups[g].count;
        const size_t at = (groups[g].begin + lane) * each + term;
        table.order.push_back(static_cast<int32_t>((is_there ? terms.places[at] : first[g]) - base));
        if (!terms.blends || term == 1) table.weights.push_back(is_there ? terms.weights[at] : 0);
      }
    }
  }
  for (const int64_t there : {extent, extent - width, terms.count()}) {
    const std::vector<int32_t> mask = mask_of(there, lanes);
    table.masks.insert(table.masks.end(), mask.begin(), mask.end());
  }
  return table;
}

}  // namespace lathe
