#pragma once
// What sums of weighted pixels are made of.
#include <cstdint>
#include <vector>

namespace lathe {

enum class MixElement { f32, u8, i8 };
constexpr int64_t bytes_of(MixElement element) { return element == MixElement::f32 ? 4 : 1; }
inline const char* name_of(MixElement element) {
  static constexpr const char* kNames[] = {"f32", "u8", "i8"};
  return kNames[static_cast<int>(element)];
}

// One sum for each position of a result, all of equally many terms: where there are fewer, a place that is read anyway
// stands again, with weight 0.
struct MixTerms {
  int terms = 1;
  bool blends = false;          // two terms whose weights add up to 1: a + weight * (b - a), exact where a is b
  std::vector<int32_t> places;  // [sums][terms]
  std::vector<float> weights;   // [sums][terms]

  // Of each sum: how many from it on have the same places.
  std::vector<int32_t> alike() const;
  int64_t count() const { return static_cast<int64_t>(places.size()) / terms; }
};

// Sums of more terms are made in a loop.
inline constexpr int kUnrolledTerms = 8;

}  // namespace lathe
