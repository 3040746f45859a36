#include "tools/duration.h"

#include <cmath>
#include <map>

#include "lathe/error.h"

namespace lathe::tools {

double parse_seconds(const std::string& text, const std::string& option) {
  static const std::map<std::string, double> seconds_in{{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  try {
    size_t used = 0;
    const double value = std::stod(text, &used);
    const auto unit = seconds_in.find(text.substr(used));
    if (unit != seconds_in.end() && std::isfinite(value) && value > 0) return value * unit->second;
  } catch (const std::exception&) {  // std::stod found no number
  }
  throw Error(ErrorCode::invalid_argument,
              "option " + option + ": '" + text + "' is not a time such as 500ms, 20s or 10m");
}

}  // namespace lathe::tools
