#include "tools/disassembly.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "jit/code_listener.h"
#include "jit/kernel.h"
#include "lathe/error.h"

namespace lathe::tools {
namespace {

using Code = std::span<const std::byte>;

// A file of its own in the folder for temporary files, gone with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(Code bytes) : path_(std::filesystem::temp_directory_path() / "lathe-code-XXXXXX") {
    const int file = mkstemp(path_.data());
    const bool is_written = file >= 0 && write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    if (file >= 0) close(file);
    if (!is_written) throw Error(ErrorCode::io, "cannot write '" + path_ + "'");
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// objdump's lines from the first instruction on; empty when there is no objdump.
std::string disassembly_of(Code code) {
  const TemporaryFile file(code);
  const std::string command =
      "objdump --disassemble-all --target=binary --architecture=i386:x86-64 -Mintel --no-show-raw-insn '" +
      file.path() + "' 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  if (!pipe) return text;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe.get())) text.append(buffer, count);
  const size_t header = text.find("<.data>:\n");
  return header == std::string::npos ? "" : text.substr(header + 9);
}

std::string hexadecimal(Code code) {
  std::string text;
  for (size_t i = 0; i < code.size(); ++i)
    text += fmt::format("{:02x}{}", static_cast<unsigned>(code[i]), i % 16 == 15 || i + 1 == code.size() ? "\n" : " ");
  return text;
}

void print_kernel(const std::string& key) {
  const Code code = find_code(key);
  fmt::print("\n{}: {} bytes\n", key, code.size());
  const std::string text = disassembly_of(code);
  fmt::print("{}", text.empty() ? hexadecimal(code) : text);
}

}  // namespace

void print_assembly(const Specialization& specialization, const std::string& node, const RunnerContext& context) {
  Graph graph = specialization.graph();
  const auto found =
      std::find_if(graph.order().begin(), graph.order().end(), [&](NodeId id) { return graph.node(id).name == node; });
  if (found == graph.order().end())
    throw Error(ErrorCode::invalid_argument,
                "option --asm: no step of a node '" + node + "' (inspect lists the steps)");
  for (const Step& step : specialization.lowered().steps)
    if (step.node == node) fmt::print("step {}: {}\n", step.op, step.kernel);
  // Lowering it once more, alone, asks for the same code again.
  graph.set_order({*found});
  const CodeListener listener;
  (void)lower_graph(graph, {context.ops, context.target, *context.packed, *context.plans, nullptr});
  if (listener.keys().empty())
    throw Error(ErrorCode::invalid_argument, "option --asm: node '" + node + "' calls no generated code");
  for (const std::string& key : listener.keys()) print_kernel(key);
}

}  // namespace lathe::tools
