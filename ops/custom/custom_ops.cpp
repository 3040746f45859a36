#include "ops/custom/custom_ops.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lathe/custom_op.h"
#include "lathe/error.h"
#include "ops/custom/custom_op_call.h"

namespace lathe {
namespace {

[[noreturn]] void refuse(const std::string& path, ErrorCode code, const std::string& what) {
  throw Error(code, "custom operators '" + path + "': " + what);
}

std::shared_ptr<void> open_library(const std::string& path) {
  // Without a slash the loader would look in the system's folders only.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  if (access(file.c_str(), R_OK) != 0) refuse(path, ErrorCode::io, std::strerror(errno));
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) refuse(path, ErrorCode::io, dlerror());
  return {handle, [](void* library) { dlclose(library); }};
}

const LatheCustomOps& operators_in(const std::string& path, void* library) {
  using Entry = const LatheCustomOps*();
  auto* entry = reinterpret_cast<Entry*>(dlsym(library, LATHE_CUSTOM_OPS_SYMBOL));
  if (entry == nullptr) {
    refuse(path, ErrorCode::invalid_argument,
           "exports no function " LATHE_CUSTOM_OPS_SYMBOL " (see include/lathe/custom_op.h)");
  }
  const LatheCustomOps* ops = entry();
  if (ops == nullptr) refuse(path, ErrorCode::invalid_argument, LATHE_CUSTOM_OPS_SYMBOL " returned null");
  if (ops->abi != LATHE_CUSTOM_OP_ABI || ops->op_size != sizeof(LatheCustomOp)) {
    refuse(path, ErrorCode::invalid_argument,
           "made for version " + std::to_string(ops->abi) + " of the interface, this Lathe has version " +
               std::to_string(LATHE_CUSTOM_OP_ABI));
  }
  if (ops->count > 0 && ops->ops == nullptr) refuse(path, ErrorCode::invalid_argument, "has no table of operators");
  return *ops;
}

// What cannot be right, or "".
std::string problem_of(const LatheCustomOp& op) {
  if (op.name == nullptr || *op.name == '\0') return "has no name";
  if (op.domain == nullptr || *op.domain == '\0') return "has no domain";
  if (op.since_version < 1) return "has version " + std::to_string(op.since_version) + ", expected 1 or more";
  if (op.infer == nullptr || op.compute == nullptr) return "lacks infer or compute";
  const auto is_range = [](int32_t low, int32_t high) { return low >= 0 && (high == -1 || high >= low); };
  if (!is_range(op.min_inputs, op.max_inputs)) return "has an impossible number of inputs";
  if (!is_range(op.min_outputs, op.max_outputs) || op.max_outputs == 0) return "has an impossible number of outputs";
  if (op.input_type_count > 0 && op.input_types == nullptr) return "has no table of input types";
  return "";
}

void add_library(const std::string& path, std::vector<OpDef>& defs) {
  const std::shared_ptr<void> library = open_library(path);
  const LatheCustomOps& ops = operators_in(path, library.get());
  for (uint32_t i = 0; i < ops.count; ++i) {
    const std::string problem = problem_of(ops.ops[i]);
    const std::string name = ops.ops[i].name == nullptr ? std::to_string(i) : ops.ops[i].name;
    if (!problem.empty()) refuse(path, ErrorCode::invalid_argument, "operator '" + name + "' " + problem);
    OpDef def = custom_op_def(ops.ops[i], library);
    for (const OpDef& other : defs) {
      if (other.schema.name == def.schema.name && other.schema.domain == def.schema.domain &&
          (other.schema.extension == nullptr || other.schema.since == def.schema.since)) {
        refuse(path, ErrorCode::invalid_argument,
               "operator '" + name + "' of domain '" + std::string(def.schema.domain) + "' exists already");
      }
    }
    defs.push_back(std::move(def));
  }
}

// Of several versions of one operator each lasts until the next.
void close_version_ranges(std::vector<OpDef>& defs) {
  for (OpDef& def : defs) {
    if (def.schema.extension == nullptr) continue;
    for (const OpDef& other : defs) {
      const bool is_newer = other.schema.extension != nullptr && other.schema.name == def.schema.name &&
                            other.schema.domain == def.schema.domain && other.schema.since > def.schema.since;
      if (is_newer) def.schema.until = std::min(def.schema.until, other.schema.since - 1);
    }
  }
}

}  // namespace

std::shared_ptr<const OpRegistry> registry_with(const std::vector<std::string>& libraries) {
  const OpRegistry& builtin = OpRegistry::builtin();
  if (libraries.empty()) return {std::shared_ptr<void>(), &builtin};
  std::vector<OpDef> defs(builtin.all().begin(), builtin.all().end());
  for (const std::string& path : libraries) add_library(path, defs);
  close_version_ranges(defs);
  return std::make_shared<const OpRegistry>(std::move(defs));
}

}  // namespace lathe
