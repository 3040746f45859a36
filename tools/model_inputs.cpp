#include "tools/model_inputs.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <random>

#include "src/base/checked_size.h"
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
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("x,"), text.size());
    dims.push_back(parse_extent(text.substr(0, end), option));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return dims;
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

Tensor read_input(const std::string& text) {
  const size_t npz = text.rfind(".npz:");
  if (npz != std::string::npos) return read_tensor_file(text.substr(0, npz + 4), text.substr(npz + 5));
  return read_tensor_file(text, "");
}

Tensor read_from_directory(const std::string& directory, size_t index) {
  const std::filesystem::path base(directory);
  const std::string number = std::to_string(index);
  for (const std::string& name : {number + ".npy", number + ".pb", "input_" + number + ".pb"})
    if (std::filesystem::exists(base / name)) return read_tensor_file((base / name).string(), "");
  throw Error(ErrorCode::io, "'" + directory + "' has no file for input " + number + " (" + number + ".npy or input_" +
                                 number + ".pb)");
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
  verb.add_option("--dim", dims, "SYMBOL=N for an open extent, repeatable");
}

std::vector<Tensor> make_inputs(const Session& session, const InputOptions& options) {
  const auto files = split_pairs(options.files, '=', "--input");
  const auto shapes = split_pairs(options.shapes, ':', "--shape");
  const auto symbols = split_pairs(options.dims, '=', "--dim");
  check_names(files, session, "--input");
  check_names(shapes, session, "--shape");
  std::mt19937_64 random(options.seed);
  std::vector<Tensor> inputs;
  for (const ValueInfo& info : session.inputs()) {
    if (auto file = files.find(info.name); file != files.end()) {
      inputs.push_back(read_input(file->second));
      continue;
    }
    if (!options.directory.empty()) {
      inputs.push_back(read_from_directory(options.directory, inputs.size()));
      continue;
    }
    Dims extents = info.dims;
    if (auto shape = shapes.find(info.name); shape != shapes.end()) extents = parse_shape(shape->second, "--shape");
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] >= 0) continue;
      const auto symbol = symbols.find(info.symbols[d]);
      extents[d] = symbol != symbols.end() ? parse_extent(symbol->second, "--dim") : 1;
    }
    inputs.push_back(made_up(info, extents, options, random));
  }
  return inputs;
}

}  // namespace lathe::tools
