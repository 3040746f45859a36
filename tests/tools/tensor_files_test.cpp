// Files with tensors: what is written is read back, what NumPy writes is read, what is broken is refused by name.
#include "tools/tensor_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <cstring>

#include "graph/model.h"
#include "lathe/error.h"
#include "tests/tools/program.h"

namespace lathe::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::write_text;

// A .npy file as NumPy writes it.
std::string npy(const std::string& header, const std::string& elements, char version = 1) {
  std::string text = "\x93NUMPY";
  text += version;
  text += '\0';
  const auto length = static_cast<uint32_t>(header.size());
  text.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return text + header + elements;
}

template <class T>
std::string bytes_of(std::initializer_list<T> elements) {
  return {reinterpret_cast<const char*>(elements.begin()), elements.size() * sizeof(T)};
}

template <class T>
std::vector<T> list(const Tensor& tensor) {
  return {tensor.elements<T>().begin(), tensor.elements<T>().end()};
}

template <class Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  ASSERT_EQ(a.dims(), b.dims());
  if (a.bytes() > 0) {
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
  }
}

// Bytes 0 and 1, which are elements of every type.
Tensor counting(DType dtype, const Dims& dims) {
  Tensor tensor(dtype, dims);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i % 2);
  return tensor;
}

TEST(NpyFile, ReadsBackWhatItWrote) {
  const Folder folder;
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::i8, DType::i16, DType::i32, DType::i64, DType::u8,
                      DType::u16, DType::u32, DType::u64, DType::boolean})
    for (const Dims& dims : {Dims{}, Dims{0}, Dims{5}, Dims{2, 3}, Dims{1, 0, 4}, Dims{2, 1, 3, 2}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + to_string(dims));
      const Tensor tensor = counting(dtype, dims);
      write_npy(folder / "x.npy", tensor);
      expect_same(read_npy(folder / "x.npy"), tensor);
    }
}

TEST(NpyFile, IsReadAsNumPyWritesIt) {
  const Folder folder;
  write_text(folder / "c.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
                                   bytes_of<float>({1, 2, 3, 4, 5, 6})));
  const Tensor c = read_npy(folder / "c.npy");
  EXPECT_THAT(c.dims(), ElementsAre(2, 3));
  EXPECT_THAT(list<float>(c), ElementsAre(1, 2, 3, 4, 5, 6));
  write_text(folder / "f.npy", npy("{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3), }\n",
                                   bytes_of<int64_t>({1, 4, 2, 5, 3, 6}), 2));
  EXPECT_THAT(list<int64_t>(read_npy(folder / "f.npy")), ElementsAre(1, 2, 3, 4, 5, 6));
  write_text(folder / "s.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (), }\n", "\x09"));
  EXPECT_EQ(read_npy(folder / "s.npy").data<uint8_t>()[0], 9);
  EXPECT_EQ(read_npy(folder / "s.npy").rank(), 0);
  write_text(folder / "v.npy", npy("{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }\n", "\x01"));
  EXPECT_THAT(read_npy(folder / "v.npy").dims(), ElementsAre(1));
}

TEST(NpyFile, IsRefusedWhenItIsBroken) {
  const Folder folder;
  const std::string good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", bytes_of<float>({1, 2}));
  const auto refusal = [&](const std::string& text) {
    write_text(folder / "x.npy", text);
    const std::string message = error_of([&] { (void)read_npy(folder / "x.npy"); });
    EXPECT_THAT(message, HasSubstr("x.npy")) << "names the file";
    return message;
  };
  const auto shaped = [&](const std::string& shape) {
    return npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n", "1234");
  };
  EXPECT_THAT(refusal(""), HasSubstr("not a .npy file"));
  EXPECT_THAT(refusal("PK\x03\x04 something else"), HasSubstr("not a .npy file"));
  for (size_t keep : {9U, 11U, 30U, 60U}) EXPECT_NE(refusal(good.substr(0, keep)), "");
  EXPECT_THAT(refusal(good.substr(0, good.size() - 1)), HasSubstr("expected 8 bytes"));
  EXPECT_THAT(refusal(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }\n", "1234")), HasSubstr(">f4"));
  EXPECT_THAT(refusal(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", "1234")), HasSubstr("|O"));
  EXPECT_THAT(refusal(npy("{'descr': '<f4', 'fortran_order': False}\n", "1234")), HasSubstr("shape"));
  EXPECT_THAT(refusal(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", "1234")),
              HasSubstr("type"));
  EXPECT_NE(refusal(npy("no dictionary\n", "1234")), "");
  // Extents that overflow, or are more than the file holds.
  for (const char* shape :
       {"(4294967296, 4294967296)", "(99999999999999999999,)", "(-1,)", "(2000000000,)", "7", "(a,)"})
    EXPECT_NE(refusal(shaped(shape)), "") << shape;
}

TEST(NpyFile, IsNamedWhenItCannotBeReadOrWritten) {
  EXPECT_THAT(error_of([] { (void)read_npy("/nowhere/x.npy"); }), HasSubstr("/nowhere/x.npy"));
  EXPECT_THAT(error_of([] { write_npy("/nowhere/x.npy", Tensor(DType::f32, {1})); }), HasSubstr("/nowhere/x.npy"));
  EXPECT_THAT(error_of([] { write_npy("x.npy", Tensor(DType::bf16, {1})); }), HasSubstr("bfloat16"));
}

void write_npz(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members) {
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  for (const auto& [name, bytes] : members)
    zip_file_add(archive, name.c_str(), zip_source_buffer(archive, bytes.data(), bytes.size(), 0), ZIP_FL_ENC_UTF_8);
  zip_close(archive);
}

std::string one_float(float value) {
  return npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", bytes_of<float>({value}));
}

TEST(NpzFile, GivesArraysByName) {
  const Folder folder;
  write_npz(folder / "one.npz", {{"x.npy", one_float(3)}});
  EXPECT_EQ(read_npz(folder / "one.npz", "").data<float>()[0], 3);
  write_npz(folder / "two.npz", {{"x.npy", one_float(4)}, {"y.npy", one_float(5)}});
  EXPECT_EQ(read_npz(folder / "two.npz", "x").data<float>()[0], 4);
  EXPECT_EQ(read_npz(folder / "two.npz", "y.npy").data<float>()[0], 5);
  EXPECT_THAT(error_of([&] { (void)read_npz(folder / "two.npz", ""); }), HasSubstr("several arrays"));
  EXPECT_THAT(error_of([&] { (void)read_npz(folder / "two.npz", "z"); }),
              AllOf(HasSubstr("two.npz"), HasSubstr("'z.npy'")));
}

TEST(NpzFile, IsRefusedWhenItIsBroken) {
  const Folder folder;
  write_text(folder / "x.npz", "no archive");
  EXPECT_THAT(error_of([&] { (void)read_npz(folder / "x.npz", ""); }), HasSubstr("x.npz"));
  write_npz(folder / "y.npz", {{"x.npy", "no array"}});
  EXPECT_THAT(error_of([&] { (void)read_npz(folder / "y.npz", ""); }), HasSubstr("y.npz:x.npy"));
}

TEST(ProtoFile, ReadsBackWhatItWrote) {
  const Folder folder;
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::i64, DType::u64,
                      DType::boolean, DType::c64, DType::u4, DType::f8e4m3fn})
    for (const Dims& dims : {Dims{}, Dims{0}, Dims{4}, Dims{3, 2}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + to_string(dims));
      const Tensor tensor = counting(dtype, dims);
      write_tensor_proto(folder / "x.pb", "x", tensor);
      expect_same(read_tensor_file(folder / "x.pb", ""), tensor);
    }
}

TEST(ProtoFile, IsRefusedWhenItIsBroken) {
  const Folder folder;
  write_tensor_proto(folder / "x.pb", "x", Tensor(DType::f32, {100}));
  const std::string good = testing::text_of(folder / "x.pb");
  for (size_t keep : {size_t{1}, size_t{3}, good.size() / 2, good.size() - 1}) {
    write_text(folder / "x.pb", good.substr(0, keep));
    EXPECT_THAT(error_of([&] { (void)read_tensor_file(folder / "x.pb", ""); }), HasSubstr("x.pb")) << keep;
  }
  EXPECT_THAT(error_of([] { (void)read_tensor_file("/nowhere/x.pb", ""); }), HasSubstr("/nowhere/x.pb"));
}

TEST(TensorFile, IsKnownByItsEnding) {
  EXPECT_THAT(error_of([] { (void)read_tensor_file("x.jpeg", ""); }), AllOf(HasSubstr("x.jpeg"), HasSubstr(".npz")));
}

}  // namespace
}  // namespace lathe::tools
