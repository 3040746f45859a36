#pragma once
#include <mutex>
#include <optional>

#include "graph/pipeline.h"
#include "src/runtime/runner_context.h"

namespace lathe {

// Runs the passes of specializations of one graph. Where two shapes in a row had the same passes change it, later ones
// get these passes only: most look for what such a graph does not have. Thread-safe.
class PassReplay {
 public:
  struct Scripts {
    PassScript bind, specialize;
    bool operator==(const Scripts&) const = default;
  };

  // What to replay; nullopt: run all passes, and tell.
  std::optional<Scripts> scripts();
  void tell(Scripts scripts);
  // These did not do.
  void forget();

 private:
  std::mutex mutex_;
  std::optional<Scripts> last_;
  bool is_confirmed_ = false;
  int replayed_ = 0;  // since all passes ran
};

}  // namespace lathe
