#pragma once
// Tasks by their text, "family key": as `lathe inspect --show tasks` prints them, for `lathe bench-kernel`.
#include <string>
#include <string_view>

#include "tuner/task.h"

namespace lathe {

// "conv avx512 n1 64>64/1 1x1 c16 | ...": the family without its version, and the key.
std::string task_text(const TuningTask& task);

// The task that has this text. Throws Error(invalid_argument) for a text that is none, Error(unsupported) for another
// instruction set than this machine's.
TuningTask parse_task(std::string_view text, int threads);

}  // namespace lathe
