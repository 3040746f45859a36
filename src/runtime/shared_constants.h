#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "graph/graph.h"

namespace lathe {

// What passes make of a model's constants they make anew for each specialization. Equal constants become one here, as
// long as somebody has it: in memory once, and packed once. Thread-safe.
class SharedConstants {
 public:
  // Returns the bytes of those that nobody had before.
  size_t share(Graph& graph);

 private:
  struct Known {
    DType dtype;
    Dims dims;
    const void* elements;
    std::weak_ptr<const void> owner;
  };
  // Undefined: it is the first.
  Tensor find(const std::string& sample, const Tensor& constant) const;
  void drop_stale();

  std::mutex mutex_;
  std::unordered_multimap<std::string, Known> by_sample_;
  size_t most_ = 1024;  // until stale ones are looked for
};

}  // namespace lathe
