#pragma once
#include <string>

namespace lathe::tools {

// Seconds of "500ms", "20s", "10m", "2h" or "1.5" (seconds). Throws Error(invalid_argument) naming the option unless it
// is a positive time.
double parse_seconds(const std::string& text, const std::string& option);

}  // namespace lathe::tools
