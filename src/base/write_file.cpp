#include "src/base/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lathe/error.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path) {
  const int reason = errno;
  throw Error(ErrorCode::io,
              "cannot write '" + path + "'" + (reason != 0 ? std::string(": ") + std::strerror(reason) : ""));
}

bool writes_to(const std::string& path, const std::function<bool(std::ostream&)>& write) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file || !write(file)) return false;
  file.close();
  return !file.fail();
}

}  // namespace

void write_file(const std::string& path, const std::function<bool(std::ostream&)>& write) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  // /dev/stdout may be a regular file, which others write, too.
  const bool is_ours = !path.starts_with("/dev/") && !path.starts_with("/proc/");
  if (!is_ours || (fs::exists(status) && !fs::is_regular_file(status))) {
    if (!writes_to(path, write)) fail(path);
    return;
  }
  // Behind a link, the file that it points to is replaced, not the link. A file that may not be written stays, too.
  const std::string target = fs::exists(status) ? fs::canonical(path, error).string() : path;
  if (fs::exists(status) && access(target.c_str(), W_OK) != 0) fail(path);
  const std::string part = target + "." + std::to_string(getpid()) + ".part";
  const bool is_whole = writes_to(part, write);
  if (is_whole && fs::exists(status)) fs::permissions(part, status.permissions(), error);
  if (is_whole && std::rename(part.c_str(), target.c_str()) == 0) return;
  const int reason = errno;
  fs::remove(part, error);
  errno = reason;
  fail(path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(ErrorCode::io, "cannot make the folder '" + path + "': " + error.message());
}

}  // namespace lathe
