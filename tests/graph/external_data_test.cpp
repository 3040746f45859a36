#include "graph/onnx/external_data.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/graph/import_fixture.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A model's folder with w.bin ("0123456789") and sub/w.bin inside, and secret.bin outside.
class ExternalDataTest : public ::testing::Test {
 protected:
  ExternalDataTest() {
    root_ = fs::path(::testing::TempDir()) / ("lathe_external_" + std::to_string(::getpid()));
    fs::create_directories(root_ / "model" / "sub");
    for (const char* name : {"model/w.bin", "model/sub/w.bin", "secret.bin"})
      std::ofstream(root_ / name) << "0123456789";
  }
  ~ExternalDataTest() override { fs::remove_all(root_); }

  std::string read(const ExternalLocation& where, size_t wanted) {
    ExternalData data((root_ / "model").string());
    const ExternalData::View view = data.resolve(where, wanted);
    return {view.bytes.begin(), view.bytes.end()};
  }
  std::string complaint(const ExternalLocation& where, size_t wanted = 4) {
    const Error error = import_test::error_of([&] { read(where, wanted); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_model);
    return error.what();
  }

  fs::path root_;
};

TEST_F(ExternalDataTest, ReadsInsideTheFolder) {
  EXPECT_EQ(read({"w.bin", 2, 4}, 4), "2345");
  EXPECT_EQ(read({"./sub//w.bin", 6, std::nullopt}, 4), "6789");
}

TEST_F(ExternalDataTest, RefusesPathsThatLeaveTheFolder) {
  EXPECT_THAT(complaint({"../secret.bin", 0, 4}), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(complaint({"sub/../../secret.bin", 0, 4}), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(complaint({"..\\secret.bin", 0, 4}), HasSubstr("backslash"));
  EXPECT_THAT(complaint({(root_ / "secret.bin").string(), 0, 4}), HasSubstr("absolute"));
  EXPECT_THAT(complaint({std::string("w.bin\0x", 7), 0, 4}), HasSubstr("NUL"));
  EXPECT_THAT(complaint({"", 0, 4}), HasSubstr("without a location"));
}

TEST_F(ExternalDataTest, RefusesLinksAndWhatIsNoRegularFile) {
  fs::create_symlink(root_ / "secret.bin", root_ / "model" / "link.bin");
  fs::create_directory_symlink(root_, root_ / "model" / "up");
  fs::create_hard_link(root_ / "secret.bin", root_ / "model" / "hard.bin");
  ASSERT_EQ(::mkfifo((root_ / "model" / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(complaint({"link.bin", 0, 4}), HasSubstr("links are not followed"));
  complaint({"up/secret.bin", 0, 4});
  EXPECT_THAT(complaint({"hard.bin", 0, 4}), HasSubstr("hard link"));
  EXPECT_THAT(complaint({"fifo", 0, 4}), HasSubstr("not a regular file"));
  EXPECT_THAT(complaint({"sub", 0, 4}), HasSubstr("not a regular file"));
  EXPECT_THAT(complaint({"absent.bin", 0, 4}), HasSubstr("cannot open"));
}

TEST_F(ExternalDataTest, RefusesBytesOutsideTheFile) {
  EXPECT_THAT(complaint({"w.bin", 7, 4}), HasSubstr("exceed the file's 10"));
  EXPECT_THAT(complaint({"w.bin", 11, std::nullopt}, 0), HasSubstr("exceed"));
  EXPECT_THAT(complaint({"w.bin", SIZE_MAX - 1, 4}), HasSubstr("exceed"));
  EXPECT_THAT(complaint({"w.bin", 0, SIZE_MAX}, SIZE_MAX), HasSubstr("exceed"));
  EXPECT_THAT(complaint({"w.bin", 0, 5}), HasSubstr("has a length of 5 bytes, the tensor needs 4"));
}

TEST_F(ExternalDataTest, AModelWithoutAFolderHasNone) {
  ExternalData data("");
  EXPECT_THROW(data.resolve({"w.bin", 0, 4}, 4), Error);
}

TEST_F(ExternalDataTest, ModelsMapTheirWeights) {
  onnx::ModelProto model = import_test::relu_model();
  onnx::TensorProto* w = model.mutable_graph()->add_initializer();
  w->set_name("w");
  w->set_data_type(onnx::TensorProto::UINT8);
  w->add_dims(4);
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : std::map<std::string, std::string>{{"location", "w.bin"}, {"offset", "3"}}) {
    auto* entry = w->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
  const std::string path = (root_ / "model" / "model.onnx").string();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  const Model imported = import_model_file(path, import_test::test_ops());
  const Tensor& constant = imported.graph->value(ValueId{0}).constant;
  EXPECT_EQ(std::string(static_cast<const char*>(constant.raw()), 4), "3456");
  w->mutable_external_data(1)->set_value("3x");
  EXPECT_THAT(import_test::import_error(model).what(), HasSubstr("initializer 'w': external data"));
}

TEST_F(ExternalDataTest, AMappedFileCanBeReadPastItsEnd) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::string path = (root_ / "page").string();
  std::ofstream(path, std::ios::binary) << std::string(page, 'x');
  const auto file = MappedFile::open(path, page);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(file->bytes().data()[page + i], '\0');
  EXPECT_EQ(import_test::error_of([&] { MappedFile::open(path, page - 1); }).code(), ErrorCode::limit);
}

}  // namespace
}  // namespace lathe
