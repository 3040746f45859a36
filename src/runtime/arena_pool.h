#pragma once
// Memory for the intermediate results of runs, shared by all specializations of a model: a run of other shapes goes on
// in the pages of the one before it, where fresh ones would cost a fault each.
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lathe {

class ArenaPool {
 public:
  // Pages of the system, given back when this ends.
  class Block {
   public:
    // Throws Error(limit).
    explicit Block(size_t size);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    void* memory() const { return memory_; }
    size_t bytes() const { return bytes_; }

   private:
    void* memory_;
    size_t bytes_;
  };

  // Of at least so many bytes, whatever they hold; the caller's alone until it is given back. Throws Error(limit).
  std::unique_ptr<Block> take(size_t bytes);
  void give(std::unique_ptr<Block> block);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> idle_;  // by size
};

}  // namespace lathe
