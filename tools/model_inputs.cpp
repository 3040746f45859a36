#include "tools/model_inputs.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "graph/model.h"
#include "src/base/checked_size.h"
#include "src/runtime/session_state.h"
#include "tools/tensor_files.h"

namespace lathe::tools {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

int64_t parse_extent(std::string_view text, const std::string& option) {
  int64_t extent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
  if (error != std::errc{} || end != text.data() + text.size() || extent < 0)
    fail("option " + option + ": '" + std::string(text) + "' is not an extent");
  return extent;
}

Dims parse_shape(std::string_view text, const std::string& option) {
  Dims dims;
  if (text.empty()) return dims;  // a scalar
  for (;;) {
    const size_t end = std::min(text.find_first_of("x,"), text.size());
    dims.push_back(parse_extent(text.substr(0, end), option));
    if (end == text.size()) return dims;
    text.remove_prefix(end + 1);
  }
}

std::map<std::string, std::string> split_pairs(const std::vector<std::string>& texts, char sign,
                                               const std::string& option) {
  std::map<std::string, std::string> pairs;
  for (const std::string& text : texts) {
    // Input names may hold the sign themselves ("gpu_0/data:0"), so the last one counts.
    const size_t at = text.rfind(sign);
    if (at == std::string::npos || at == 0) fail("option " + option + ": '" + text + "' has no '" + sign + "'");
    pairs[text.substr(0, at)] = text.substr(at + 1);
  }
  return pairs;
}

void check_names(const std::map<std::string, std::string>& pairs, const Session& session, const std::string& option) {
  for (const auto& [name, text] : pairs) {
    bool is_known = false;
    for (const ValueInfo& info : session.inputs()) is_known |= info.name == name;
    if (is_known) continue;
    std::string known;
    for (const ValueInfo& info : session.inputs()) known += (known.empty() ? "'" : ", '") + info.name + "'";
    fail("option " + option + ": the model has no input '" + name + "'; it has " + known);
  }
}

void check_symbols(const std::map<std::string, std::string>& pairs, const Session& session) {
  std::set<std::string> known;
  for (const ValueInfo& info : session.inputs()) known.insert(info.symbols.begin(), info.symbols.end());
  known.erase("");
  for (const auto& [symbol, text] : pairs) {
    (void)parse_extent(text, "--dim");
    if (known.contains(symbol)) continue;
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "; it has '" : ", '") + name + "'";
    fail("option --dim: the model has no open extent '" + symbol + "'" + list);
  }
}

Tensor read_input(const std::string& text, const TensorType& type) {
  if (type.is_object()) return read_value_proto(text, type);
  const size_t npz = text.rfind(".npz:");
  if (npz != std::string::npos) return read_tensor_file(text.substr(0, npz + 4), text.substr(npz + 5));
  return read_tensor_file(text, "");
}

Tensor read_from_directory(const std::string& directory, size_t index, const TensorType& type) {
  const std::filesystem::path base(directory);
  const std::string number = std::to_string(index);
  for (const std::string& name :
       {number + ".npy", number + ".pb", "input_" + number + ".pb", "test_data_set_0/input_" + number + ".pb"})
    if (std::filesystem::exists(base / name)) return read_input((base / name).string(), type);
  throw Error(ErrorCode::io, "'" + directory + "' has no file for input " + number + " (" + number + ".npy or input_" +
                                 number + ".pb)");
}

using Extents = std::map<std::string, int64_t>;

// An open extent that one input fixes holds for all others of its name.
void bind_symbols(const ValueInfo& info, const Dims& extents, Extents& bound) {
  if (extents.size() != info.dims.size()) return;
  for (size_t d = 0; d < extents.size(); ++d)
    if (extents[d] >= 0 && !info.symbols[d].empty()) bound.emplace(info.symbols[d], extents[d]);
}

// Open extents that nothing fixes become 1.
Dims closed(const ValueInfo& info, Dims extents, const Extents& bound) {
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] >= 0) continue;
    const auto known = bound.find(info.symbols[d]);
    extents[d] = known != bound.end() ? known->second : 1;
  }
  return extents;
}

template <class T, class Draw>
Tensor filled(const Dims& dims, Draw draw) {
  Tensor tensor(dtype_of<T>(), dims);
  T* elements = tensor.mutable_data<T>();
  for (int64_t i = 0; i < tensor.size(); ++i) elements[i] = static_cast<T>(draw());
  return tensor;
}

Tensor made_up(const ValueInfo& info, const Dims& dims, const InputOptions& options, std::mt19937_64& random) {
  std::uniform_real_distribution<double> real(-1, 1);
  std::uniform_int_distribution<int> bit(0, 1);
  const bool is_random = options.fill == "random";
  const double fixed = options.fill == "ones" ? 1 : 0;
  auto draw_real = [&] { return is_random ? real(random) : fixed; };
  // Integers are mostly indices and masks: 0 and 1 are right for nearly all of them.
  auto draw_integer = [&] { return is_random ? bit(random) : fixed; };
  switch (info.dtype) {
    case DType::f32:
      return filled<float>(dims, draw_real);
    case DType::f64:
      return filled<double>(dims, draw_real);
    case DType::i64:
      return filled<int64_t>(dims, draw_integer);
    case DType::i32:
      return filled<int32_t>(dims, draw_integer);
    case DType::i16:
      return filled<int16_t>(dims, draw_integer);
    case DType::i8:
      return filled<int8_t>(dims, draw_integer);
    case DType::u64:
      return filled<uint64_t>(dims, draw_integer);
    case DType::u32:
      return filled<uint32_t>(dims, draw_integer);
    case DType::u16:
      return filled<uint16_t>(dims, draw_integer);
    case DType::u8:
      return filled<uint8_t>(dims, draw_integer);
    case DType::boolean:
      return filled<bool>(dims, draw_integer);
    default:
      return Tensor(info.dtype, dims);
  }
}

}  // namespace

void InputOptions::add_to(CLI::App& verb) {
  verb.add_option("-i,--input", files, "NAME=FILE (.npy, .npz:ARRAY, .pb), repeatable");
  verb.add_option("--input-dir,--data", directory,
                  "folder with 0.npy, 1.npy, ... or input_0.pb, ..., in the order of the inputs");
  verb.add_option("--fill", fill, "elements of inputs without a file")
      ->check(CLI::IsMember({"random", "zeros", "ones"}));
  verb.add_option("--seed", seed, "of --fill random");
  verb.add_option("--shape", shapes, "NAME:1x3x224x224, repeatable");
  verb.add_option("--dim", dims, "SYMBOL=N for an open extent, repeatable (bench: also a range, SYMBOL=FIRST..LAST)");
}

std::vector<Tensor> make_inputs(const Session& session, const InputOptions& options) {
  const auto files = split_pairs(options.files, '=', "--input");
  const auto shapes = split_pairs(options.shapes, ':', "--shape");
  const auto symbols = split_pairs(options.dims, '=', "--dim");
  check_names(files, session, "--input");
  check_names(shapes, session, "--shape");
  check_symbols(symbols, session);
  const std::vector<ValueInfo>& infos = session.inputs();
  std::vector<Tensor> inputs(infos.size());
  std::vector<Dims> extents(infos.size());
  Extents bound;
  for (const auto& [symbol, text] : symbols) bound[symbol] = parse_extent(text, "--dim");
  for (size_t i = 0; i < infos.size(); ++i) {
    const TensorType& type = session.state()->input_types[i];
    const auto file = files.find(infos[i].name);
    const auto shape = shapes.find(infos[i].name);
    if (file != files.end())
      inputs[i] = read_input(file->second, type);
    else if (!options.directory.empty())
      inputs[i] = read_from_directory(options.directory, i, type);
    if (type.is_object()) {
      if (!inputs[i].defined()) fail("input '" + infos[i].name + "' is " + infos[i].container + ": give a file");
      continue;
    }
    // A scalar is often kept as a list of one.
    const bool is_scalar = infos[i].has_rank && infos[i].dims.empty();
    if (is_scalar && inputs[i].defined() && inputs[i].size() == 1) inputs[i] = inputs[i].reshaped({});
    extents[i] = inputs[i].defined()     ? inputs[i].dims()
                 : shape != shapes.end() ? parse_shape(shape->second, "--shape")
                                         : infos[i].dims;
    bind_symbols(infos[i], extents[i], bound);
  }
  std::mt19937_64 random(options.seed);
  for (size_t i = 0; i < infos.size(); ++i)
    if (!inputs[i].defined()) inputs[i] = made_up(infos[i], closed(infos[i], extents[i], bound), options, random);
  return inputs;
}

}  // namespace lathe::tools
