#pragma once
// What a selection has kept of a row so far: keys, of which the larger is chosen first, and their places, in the row's
// order. When it is full it keeps the first ones, and the last key of these becomes the threshold for what follows.
#include <cstdint>
#include <span>
#include <type_traits>

#include "jit/kernels/select/beyond.h"

namespace lathe {

// Elements that a pool for `count` of `extent` has room for, `count` of them and a group of a scan among them.
int64_t topk_pool_capacity(int64_t count, int64_t extent);

template <class Key>  // int32_t or int64_t
class TopKPool {
 public:
  static constexpr int64_t kSlack = 32;  // of both arrays, behind the capacity

  // `memory`: bytes(), aligned as a Key. `keep`: of keys, by vectors of so many `lanes`; null: element by element.
  // Requires: 1 <= count.
  TopKPool(void* memory, int64_t count, int64_t capacity, KeepFn* keep = nullptr, int64_t lanes = 1);
  static size_t bytes(int64_t count, int64_t capacity);

  int64_t size() const { return size_; }
  int64_t room() const { return capacity_ - size_; }
  Key threshold() const { return threshold_; }  // as of the last shrink(): what is kept from then on is above it
  Key* keys_end() const { return keys_ + size_; }
  int32_t* places_end() const { return places_ + size_; }
  void grow(int64_t by) { size_ += by; }

  // What has at least `count` of the pool's keys above it, and not many more, becomes the threshold: the keys are those
  // of some elements of the row. Empties the pool. Requires: size() >= count; no key is the lowest there is.
  void start_above();
  // Keeps `count` of the first ones and few others. Requires: size() >= count.
  void shrink();
  // The places of the `count` first ones, in their order. Empties the pool.
  std::span<const int32_t> sorted();

 private:
  struct Item {
    std::make_unsigned_t<Key> key;  // from the first one's
    int32_t place;
  };
  static int64_t most_sorted(int64_t count, int64_t capacity);
  int64_t most_kept() const;
  int64_t count_above(Key threshold) const;
  struct Split {
    Key threshold;
    int64_t above;
  };
  Split split() const;
  void pad();  // behind the keys: what is above nothing
  void keep_above(Key threshold);
  void keep_equal(Key key, int64_t above);
  void sort_by_counting();
  void sort_by_digits();

  Key* keys_;
  int32_t* places_;
  Item* items_;      // most_sorted(), twice
  int32_t* result_;  // most_sorted()
  int64_t count_, capacity_, size_ = 0;
  Key threshold_ = 0;
  KeepFn* keep_;  // of int32_t
  int64_t lanes_;
};

extern template class TopKPool<int32_t>;
extern template class TopKPool<int64_t>;

}  // namespace lathe
