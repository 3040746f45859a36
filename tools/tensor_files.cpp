#include "tools/tensor_files.h"

#include <zip.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "graph/model.h"
#include "lathe/error.h"
#include "src/base/checked_size.h"
#include "src/base/write_file.h"

namespace lathe::tools {
namespace {

constexpr std::string_view kMagic{"\x93NUMPY", 6};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "'" + path + "': " + what);
}

// NumPy's type codes, without the byte-order sign.
const std::map<std::string, DType, std::less<>>& type_codes() {
  static const std::map<std::string, DType, std::less<>> codes{
      {"f4", DType::f32}, {"f8", DType::f64},     {"f2", DType::f16}, {"i1", DType::i8},   {"i2", DType::i16},
      {"i4", DType::i32}, {"i8", DType::i64},     {"u1", DType::u8},  {"u2", DType::u16},  {"u4", DType::u32},
      {"u8", DType::u64}, {"b1", DType::boolean}, {"c8", DType::c64}, {"c16", DType::c128}};
  return codes;
}

// The text behind "'key':" in the header's Python dictionary, up to the next top-level comma; a tuple up to its ')'.
std::string_view field(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find("'" + std::string(key) + "'");
  const size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos) fail(path, "the .npy header has no '" + std::string(key) + "'");
  const size_t begin = header.find_first_not_of(' ', colon + 1);
  if (begin == std::string_view::npos) fail(path, "the .npy header ends early");
  const size_t end = header[begin] == '(' ? header.find(')', begin) : header.find_first_of(",}", begin);
  if (end == std::string_view::npos) fail(path, "the .npy header ends early");
  return header.substr(begin, end - begin);
}

Dims parse_shape(std::string_view text, const std::string& path) {
  const auto bad = [&] { fail(path, "the .npy header's shape is " + std::string(text) + ")"); };
  if (text.empty() || text.front() != '(') bad();
  Dims dims;
  for (size_t at = 1; (at = text.find_first_not_of(' ', at)) < text.size();) {
    int64_t extent = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), extent);
    if (error != std::errc{} || extent < 0) bad();
    dims.push_back(extent);
    at = text.find_first_not_of(' ', static_cast<size_t>(end - text.data()));
    if (at >= text.size()) break;
    if (text[at++] != ',') bad();
  }
  return dims;
}

Tensor from_fortran_order(const Tensor& tensor) {
  Tensor result(tensor.dtype(), tensor.dims());
  const auto element = static_cast<size_t>(bits_of(tensor.dtype()) / 8);
  const auto* from = static_cast<const std::byte*>(tensor.raw());
  auto* to = static_cast<std::byte*>(result.mutable_raw());
  Dims index(tensor.dims().size(), 0);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    size_t at = 0, stride = 1;
    for (size_t d = 0; d < index.size(); ++d) {
      at += static_cast<size_t>(index[d]) * stride;
      stride *= static_cast<size_t>(tensor.dims()[d]);
    }
    std::memcpy(to + static_cast<size_t>(i) * element, from + at * element, element);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.dims()[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

Tensor parse_npy(std::string_view bytes, const std::string& path) {
  if (bytes.size() < 10 || bytes.substr(0, 6) != kMagic) fail(path, "not a .npy file");
  const bool is_version_1 = bytes[6] == 1;
  const size_t length_bytes = is_version_1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes) fail(path, "the .npy header ends early");
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, length_bytes);
  const size_t data_at = 8 + length_bytes + header_bytes;
  if (bytes.size() < data_at) fail(path, "the .npy header ends early");
  const std::string_view header = bytes.substr(8 + length_bytes, header_bytes);

  std::string_view descr = field(header, "descr", path);
  if (descr.size() < 5 || descr.front() != '\'' || descr[1] == '>')
    fail(path, "unsupported element type " + std::string(descr));
  const auto code = type_codes().find(descr.substr(2, descr.size() - 3));
  if (code == type_codes().end()) fail(path, "unsupported element type " + std::string(descr));
  const Dims dims = parse_shape(field(header, "shape", path), path);
  size_t wanted = 0;
  try {
    wanted = checked_bytes(code->second, dims);
  } catch (const Error& error) {
    fail(path, error.what());
  }
  if (bytes.size() - data_at < wanted)
    fail(path,
         "expected " + std::to_string(wanted) + " bytes of elements, found " + std::to_string(bytes.size() - data_at));
  Tensor tensor(code->second, dims);
  if (wanted > 0) std::memcpy(tensor.mutable_raw(), bytes.data() + data_at, wanted);
  const bool is_fortran = field(header, "fortran_order", path).substr(0, 4) == "True";
  return is_fortran ? from_fortran_order(tensor) : tensor;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::io, "cannot read '" + path + "': " + std::strerror(errno));
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw Error(ErrorCode::io, "cannot read '" + path + "'");
  return bytes;
}

bool ends_with(std::string_view text, std::string_view ending) { return text.ends_with(ending); }

}  // namespace

Tensor read_npy(const std::string& path) { return parse_npy(read_file(path), path); }

void write_npy(const std::string& path, const Tensor& tensor) {
  const auto& codes = type_codes();
  std::string_view code;
  for (const auto& [text, dtype] : codes)
    if (dtype == tensor.dtype()) code = text;
  if (code.empty()) fail(path, "NumPy has no element type for " + std::string(name_of(tensor.dtype())));
  std::string header = "{'descr': '" + std::string(bits_of(tensor.dtype()) == 8 ? "|" : "<") + std::string(code) +
                       "', 'fortran_order': False, 'shape': (";
  for (int64_t extent : tensor.dims()) header += std::to_string(extent) + ",";
  header += "), }";
  header.append(64 - (10 + header.size() + 1) % 64, ' ');  // the elements start on a multiple of 64
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  write_file(path, [&](std::ostream& file) {
    (file << kMagic).write("\1\0", 2).write(reinterpret_cast<const char*>(&length), 2) << header;
    file.write(static_cast<const char*>(tensor.raw()), static_cast<std::streamsize>(tensor.bytes()));
    return file.good();
  });
}

Tensor read_npz(const std::string& path, const std::string& member) {
  int error = 0;
  const std::unique_ptr<zip_t, int (*)(zip_t*)> archive(zip_open(path.c_str(), ZIP_RDONLY, &error), zip_close);
  if (!archive) throw Error(ErrorCode::io, "cannot read '" + path + "' as a zip archive");
  std::string name = member;
  if (name.empty()) {
    if (zip_get_num_entries(archive.get(), 0) != 1)
      fail(path, "holds several arrays: say which by --input name=" + path + ":ARRAY");
    name = zip_get_name(archive.get(), 0, 0);
  } else if (!ends_with(name, ".npy")) {
    name += ".npy";
  }
  zip_stat_t stat;
  if (zip_stat(archive.get(), name.c_str(), 0, &stat) != 0) fail(path, "has no array '" + name + "'");
  const std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> file(zip_fopen(archive.get(), name.c_str(), 0), zip_fclose);
  std::string bytes(stat.size, '\0');
  if (!file || zip_fread(file.get(), bytes.data(), stat.size) != static_cast<zip_int64_t>(stat.size))
    fail(path, "array '" + name + "' cannot be read");
  return parse_npy(bytes, path + ":" + name);
}

Tensor read_tensor_file(const std::string& path, const std::string& npz_member) {
  if (ends_with(path, ".npy")) return read_npy(path);
  if (ends_with(path, ".npz")) return read_npz(path, npz_member);
  if (ends_with(path, ".pb")) return read_tensor_proto(path);
  fail(path, "expected a file that ends in .npy, .npz or .pb");
}

}  // namespace lathe::tools
