#include "src/base/check.h"

namespace lathe {

void fail_check(const char* condition, const std::string& what, const char* file, int line) {
  throw Error(ErrorCode::internal, "internal error: " + what + " (" + condition + ", " + file + ":" +
                                       std::to_string(line) + "); please report this as a bug");
}

}  // namespace lathe
