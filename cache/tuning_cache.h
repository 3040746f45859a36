#pragma once
// The store of tuned winners: one SQLite file, shared by processes. A fault of the file costs speed, never correctness:
// a cache that cannot be used says so once on stderr, finds nothing, stores nothing, and leaves the file as it is.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "src/base/cpu.h"

namespace lathe {

// A winner is valid only where it was measured.
struct TuningKey {
  std::string cpu;  // cpu_key()
  int threads = 1;
  std::string family;  // with the kernel family's code version: "gemm.1"
  std::string task;    // shapes, types, layouts, epilogue
};

struct TunedPlan {
  std::string candidate;   // "k_unroll=4 rows=14 vecs=2"
  double nanoseconds = 0;  // one run, median
  double spread = 0;       // interquartile range over median
  int64_t tuned_at = 0;    // seconds since 1970
  std::string build;       // version of Lathe that measured
};

// Vendor, family, model, stepping, caches and the usable instruction set.
std::string cpu_key(const CpuFacts& facts, Isa isa);

// `option` when not empty, else $LATHE_CACHE, else $XDG_CACHE_HOME/lathe/tuning.db, else ~/.cache/lathe/tuning.db.
// Empty when there is no home: then there is no cache.
std::string tuning_cache_path(const std::string& option);

// Thread-safe. Never throws on account of the file.
class TuningCache {
 public:
  enum class Access { read_only, read_write };

  // read_write creates the folders and the file. read_only creates nothing: an absent file is an empty cache.
  explicit TuningCache(const std::string& path, Access access = Access::read_only);
  ~TuningCache();
  TuningCache(const TuningCache&) = delete;
  TuningCache& operator=(const TuningCache&) = delete;

  std::optional<TunedPlan> find(const TuningKey& key) const;
  // A row that is there is replaced by a faster plan, by a newer measurement of the same plan, and by a newer
  // measurement of another build. False: the row that was there stayed, or the file cannot be written.
  bool store(const TuningKey& key, const TunedPlan& plan);

  int64_t size() const;  // rows, of all machines
  // Why the file is not used; empty when it is. Only those who read it are warned on stderr.
  const std::string& problem() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
