#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "jit/kernels/select/beyond.h"
#include "jit/kernels/select/column_places.h"
#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;

constexpr SelectOrder kOrders[] = {SelectOrder::largest_first, SelectOrder::smallest_first};

float odd_float(std::mt19937& random) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0.0F, -0.0F, infinity, -infinity, std::nanf(""), -std::nanf(""), 1e-42F, -1e-42F};
  return random() % 6 == 0 ? odd[random() % std::size(odd)] : static_cast<float>(random() % 64) / 4 - 8;
}

// Strictly, by the words of the header.
bool comes_first(float x, float y, SelectOrder order) {
  if (order == SelectOrder::smallest_first) std::swap(x, y);
  return std::isnan(x) ? !std::isnan(y) : x > y;
}

TEST(Select, KeysAreInTheOrderOfTheElements) {
  std::mt19937 random(1);
  for (const SelectOrder order : kOrders) {
    for (int i = 0; i < 5000; ++i) {
      const float x = odd_float(random), y = odd_float(random);
      EXPECT_EQ(order_key(x, order) > order_key(y, order), comes_first(x, y, order)) << x << " " << y;
    }
  }
}

TEST(Select, ListsEachGroupWithAnElementBeyond) {
  std::mt19937 random(2);
  for (const Isa isa : testing::isas_here()) {
    const int64_t group = select_group(isa);
    for (const SelectOrder order : kOrders) {
      const auto find = find_groups_kernel(isa, order);
      const float sign = order == SelectOrder::largest_first ? 1 : -1, threshold = sign * 3;
      for (int64_t groups = 0; groups <= 40; ++groups) {
        GuardedFloats row(static_cast<size_t>(groups * group));
        std::vector<int32_t> expected, list(static_cast<size_t>(groups) + 1, -1);
        for (size_t i = 0; i < row.size(); ++i) row[i] = random() % 9 == 0 ? threshold : sign * 2;
        for (int64_t g = 0; g < groups; ++g) {
          if (random() % 2 == 0) continue;
          row[static_cast<size_t>(g * group) + random() % static_cast<size_t>(group)] =
              random() % 4 == 0 ? std::nanf("") : sign * 4;
          expected.push_back(static_cast<int32_t>(g));
        }
        const int64_t found = find.entry()(row.data(), groups, &threshold, list.data());
        EXPECT_EQ(list.back(), -1) << "nothing is written behind the list";
        list.resize(static_cast<size_t>(found));
        EXPECT_EQ(list, expected);
      }
    }
  }
}

// No element that comes before a threshold is missed for it, whatever it is.
TEST(Select, AThresholdOfAKeyRulesOutNothingAboveIt) {
  std::mt19937 random(3);
  for (const Isa isa : testing::isas_here()) {
    for (const SelectOrder order : kOrders) {
      const auto find = find_groups_kernel(isa, order);
      for (int i = 0; i < 2000; ++i) {
        GuardedFloats row(static_cast<size_t>(select_group(isa)));
        const int32_t own = order_key(odd_float(random), order), least = std::numeric_limits<int32_t>::min();
        const int32_t key = own == least ? own : own - static_cast<int32_t>(random() % 2);
        bool is_above = false;
        for (size_t j = 0; j < row.size(); ++j) {
          row[j] = j == 7 ? odd_float(random) : row[0];
          if (j == 0) row[0] = odd_float(random);
          is_above |= order_key(row[j], order) > key;
        }
        const float threshold = threshold_of(key, order);
        int32_t list[1];
        const int64_t found = find.entry()(row.data(), 1, &threshold, list);
        EXPECT_TRUE(found == 1 || !is_above) << key;
      }
    }
  }
}

TEST(Select, FindsTheFirstOfEachGroup) {
  std::mt19937 random(7);
  for (const Isa isa : testing::isas_here()) {
    const auto lanes = static_cast<size_t>(vector_lanes(isa));
    for (const SelectOrder order : kOrders) {
      const float worst = std::numeric_limits<float>::infinity() * (order == SelectOrder::largest_first ? -1.0F : 1.0F);
      for (int round = 0; round < 40; ++round) {
        const size_t groups = 1 + random() % 5, quarters = 1 + random() % 3, vectors = 4 * quarters;
        GuardedFloats row(groups * vectors * lanes), got(groups * lanes);
        for (size_t i = 0; i < row.size(); ++i) row[i] = odd_float(random);
        const GroupFirstsArgs args{row.data(), static_cast<int64_t>(groups), static_cast<int64_t>(quarters),
                                   got.data()};
        group_firsts_kernel(isa, order).entry()(&args);
        for (size_t i = 0; i < got.size(); ++i) {
          float expected = worst;
          for (size_t v = 0; v < vectors; ++v) {
            const float x = row[(i / lanes * vectors + v) * lanes + i % lanes];
            if (!std::isnan(x) && comes_first(x, expected, order)) expected = x;
          }
          EXPECT_EQ(got[i], expected);
        }
      }
    }
  }
}

struct Kept {
  std::vector<int32_t> keys, places;
  bool operator==(const Kept&) const = default;
};

TEST(Select, KeepsTheElementsOfListedGroupsInTheirOrder) {
  std::mt19937 random(4);
  for (const Isa isa : testing::isas_here()) {
    const auto group = static_cast<size_t>(select_group(isa)), lanes = static_cast<size_t>(vector_lanes(isa));
    for (const SelectOrder order : kOrders) {
      const auto keep = keep_beyond_kernel(
          isa, order == SelectOrder::largest_first ? KeepSource::row_largest : KeepSource::row_smallest);
      for (int round = 0; round < 60; ++round) {
        const size_t groups = 1 + random() % 9;
        GuardedFloats row(groups * group);
        for (size_t i = 0; i < row.size(); ++i) row[i] = odd_float(random);
        const int32_t threshold = order_key(odd_float(random), order), first = static_cast<int32_t>(random() % 1000);
        std::vector<int32_t> list;
        Kept expected, got;
        for (size_t g = 0; g < groups; ++g) {
          if (g > 0 && random() % 3 == 0) continue;
          list.push_back(static_cast<int32_t>(g));
          for (size_t i = g * group; i < (g + 1) * group; ++i) {
            if (order_key(row[i], order) <= threshold) continue;
            expected.keys.push_back(order_key(row[i], order));
            expected.places.push_back(first + static_cast<int32_t>(i));
          }
        }
        got.keys.resize(row.size() + lanes);
        got.places.resize(row.size() + lanes);
        const KeepArgs args{row.data(),      list.data(),      static_cast<int64_t>(list.size()), threshold, first,
                            got.keys.data(), got.places.data()};
        const auto count = static_cast<size_t>(keep.entry()(&args));
        got.keys.resize(count);
        got.places.resize(count);
        EXPECT_EQ(got, expected);
      }
    }
  }
}

TEST(Select, KeepsKeysInTheirOwnPlace) {
  std::mt19937 random(5);
  for (const Isa isa : testing::isas_here()) {
    const auto keep = keep_beyond_kernel(isa, KeepSource::keys);
    for (int round = 0; round < 60; ++round) {
      const size_t vectors = 1 + random() % 9, size = vectors * static_cast<size_t>(vector_lanes(isa));
      Kept kept, expected;
      for (size_t i = 0; i < size; ++i) {
        kept.keys.push_back(static_cast<int32_t>(random() % 50) - 25);
        kept.places.push_back(static_cast<int32_t>(random()));
        if (kept.keys[i] <= 3) continue;
        expected.keys.push_back(kept.keys[i]);
        expected.places.push_back(kept.places[i]);
      }
      const KeepArgs args{kept.keys.data(), kept.places.data(), static_cast<int64_t>(vectors), 3, 0,
                          kept.keys.data(), kept.places.data()};
      const auto count = static_cast<size_t>(keep.entry()(&args));
      kept.keys.resize(count);
      kept.places.resize(count);
      EXPECT_EQ(kept, expected);
    }
  }
}

// What comes first of each column, and 0 exactly where one has a NaN.
void expect_column_places(const ColumnPlacesPlan& plan, int64_t rows, bool may_have_nan, std::mt19937& random) {
  const auto lanes = static_cast<size_t>(vector_lanes(plan.isa)), count = static_cast<size_t>(plan.count);
  const size_t stride = lanes + random() % 5, height = static_cast<size_t>(rows);
  GuardedFloats data((height - 1) * stride + lanes);
  bool has_nan = false;
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = odd_float(random);
    if (std::isnan(data[i]) && (!may_have_nan || random() % 64 != 0)) data[i] = -3;
    has_nan |= std::isnan(data[i]) && i % stride < lanes;
  }
  GuardedFloats places(count * lanes);
  const ColumnPlacesArgs args{data.data(), static_cast<int64_t>(stride) * 4, rows,
                              reinterpret_cast<int32_t*>(places.data())};
  ASSERT_EQ(column_places_kernel(plan).entry()(&args), has_nan ? 0 : 1);
  for (size_t lane = 0; lane < lanes && !has_nan; ++lane) {
    std::vector<size_t> order(height);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return comes_first(data[a * stride + lane], data[b * stride + lane], plan.order);
    });
    for (size_t k = 0; k < count; ++k)
      ASSERT_EQ(static_cast<size_t>(args.places[k * lanes + lane]), order[k]) << plan.count << " of " << rows;
  }
}

TEST(Select, FindsTheFirstOfEachColumn) {
  std::mt19937 random(6);
  for (const Isa isa : testing::isas_here()) {
    for (const SelectOrder order : kOrders) {
      for (int count = 1; count <= ColumnPlacesPlan::most_count(isa); ++count) {
        for (const int64_t more : {0, 1, 5, 60}) {
          expect_column_places({isa, count, order}, count + more, false, random);
          expect_column_places({isa, count, order}, count + more, true, random);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
