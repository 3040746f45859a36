#pragma once
#include <functional>
#include <ostream>
#include <string>

namespace lathe {

// Writes a file and, where there was one of that name, takes its place only once all of it is written: a disk that
// fills up leaves the old one, and whoever maps the old one, as a loaded model does, goes on reading it. What is no
// regular file (a device, a pipe), or lies in /dev or /proc, is written as it is. `write` returns false, or leaves the
// stream failed, when it could not write. Throws Error(io) naming the file.
void write_file(const std::string& path, const std::function<bool(std::ostream&)>& write);

// The folder and those above it. Throws Error(io) naming the folder.
void make_folder(const std::string& path);

}  // namespace lathe
