// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/json.h"
#include "io/safetensors_writer.h"
#include "unit/io/temporary_folder.h"

namespace wick {
namespace {

std::string with_length(const std::string& header, const std::string& data, int64_t lie = 0) {
  uint64_t length = header.size() + static_cast<uint64_t>(lie);
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return file + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "w.safetensors");
}

std::string error_of(const std::string& file) {
  return message_of([&] { parse(file); });
}

std::string tensor(const std::string& name, const std::string& type, const std::string& shape,
                   const std::string& offsets) {
  return cat("\"", name, "\":{\"dtype\":\"", type, "\",\"shape\":", shape,
             ",\"data_offsets\":", offsets, "}");
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(Safetensors, RoundTrip) {
  TemporaryFolder folder("safetensors");
  auto path = folder / "model.safetensors";
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<uint16_t> b = {7, 8, 9};
  std::vector<int64_t> c = {-1};
  {
    SafetensorsWriter out(path);
    out.declare("b", DType::kBF16, {3});
    out.declare("a", DType::kF32, {2, 3});
    out.declare("none", DType::kF16, {0, 4});
    out.declare("c", DType::kI64, {});
    out.write("a", bytes_of(a));
    out.write("c", bytes_of(c));
    out.write("b", bytes_of(b));
    out.commit();
  }
  std::string raw = read_file(path);
  EXPECT_EQ(static_cast<unsigned char>(raw[0]) % 8, 0);
  EXPECT_EQ(raw[8], '{');

  SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 4u);
  const TensorInfo* info = file.find("a");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, DType::kF32);
  EXPECT_EQ(info->type_name, "F32");
  EXPECT_EQ(info->shape, (Shape{2, 3}));
  EXPECT_EQ(std::memcmp(file.bytes(*info).data(), a.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("b")).data(), b.data(), 6), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("c")).data(), c.data(), 8), 0);
  EXPECT_EQ(file.find("c")->shape.rank(), 0);
  EXPECT_TRUE(file.bytes(*file.find("none")).empty());
  EXPECT_EQ(file.find("d"), nullptr);
  for (const TensorInfo& t : file.tensors()) EXPECT_EQ(t.begin % dtype_bytes(*t.dtype), 0u);
  file.drop(*info);
  SafetensorsFile moved = std::move(file);
  EXPECT_EQ(moved.bytes(*moved.find("a")).size(), 24u);
}

TEST(Safetensors, AnUnfinishedWriteLeavesTheOldFile) {
  TemporaryFolder folder("safetensors_atomic");
  auto path = folder.write("x.safetensors", "old");
  std::vector<float> a = {1, 2};
  {
    SafetensorsWriter out(path, {});
    out.declare("a", DType::kF32, {2});
    out.declare("b", DType::kF32, {2});
    EXPECT_THROW(out.declare("a", DType::kF32, {2}), Error);
    out.write("a", bytes_of(a));
    EXPECT_THROW(out.write("a", bytes_of(a)), Error);
    EXPECT_THROW(out.write("z", bytes_of(a)), Error);
    EXPECT_THROW(out.write("b", bytes_of(a).subspan(1)), Error);
    EXPECT_PRED2(contains, message_of([&] { out.commit(); }),
                 "tensor b was declared and not written");
  }
  EXPECT_EQ(read_file(path), "old");
}

TEST(Safetensors, KeepsTypesAndRanksItDoesNotCompute) {
  std::string data(2 + 8 + 5, 'x');
  std::string header = "{" + tensor("f8", "F8_E4M3", "[2]", "[0,2]") + "," +
                       tensor("deep", "I8", "[1,2,1,2,2]", "[2,10]") + "," +
                       tensor("odd", "Q9_K", "[3]", "[10,15]") + "}";
  TemporaryFolder folder("safetensors_types");
  SafetensorsFile file(folder.write("x.safetensors", with_length(header, data)));
  EXPECT_EQ(file.find("f8")->type_name, "F8_E4M3");
  EXPECT_FALSE(file.find("f8")->dtype);
  EXPECT_EQ(file.find("odd")->type_name, "Q9_K");
  EXPECT_TRUE(file.has("deep"));
  EXPECT_PRED2(contains, message_of([&] { file.find("deep"); }), "has 5 dimensions");
}

TEST(Safetensors, RefusesLies) {
  const std::string one = "{" + tensor("a", "F32", "[2]", "[0,8]") + "}", eight(8, '\0');
  EXPECT_EQ(error_of(with_length(one, eight)), "");
  EXPECT_EQ(error_of(with_length(one + "   ", eight)), "");
  EXPECT_EQ(error_of(with_length("{}", "")), "");

  struct Case {
    std::string file, message;
  };
  auto header = [](const std::string& tensors) { return "{" + tensors + "}"; };
  const Case cases[] = {
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {with_length(one, eight, 1000), "the header claims"},
      {std::string(8, '\xff') + one, "the header claims 18446744073709551615"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"<!DOCTYPE html><html>not found</html>", "this is a web page"},
      {with_length(one, eight, -3), "not valid JSON"},
      {with_length("[]", ""), "expected an object"},
      {with_length("", ""), "not valid JSON"},
      {with_length("{\"a\":3}", ""), "expected an object"},
      {with_length(std::string(100'000, '['), ""), "levels deep"},
      {with_length(one, eight.substr(1)), "cut short"},
      {with_length(one, ""), "download again?"},
      {with_length(one, eight + "x"), "1 bytes after the last tensor"},
      {with_length(header(tensor("a", "F32", "[3]", "[0,8]")), eight), "takes 12 bytes"},
      {with_length(header(tensor("a", "BF16", "[2]", "[0,8]")), eight), "takes 4 bytes"},
      {with_length(header(tensor("a", "F32", "[]", "[0,8]")), eight), "takes 4 bytes"},
      {with_length(header(tensor("a", "F4", "[3]", "[0,2]")), "xx"), "no whole number"},
      {with_length(header(tensor("a", "F32", "[4294967296,4294967296]", "[0,0]")), ""),
       "more than any file has"},
      {with_length(header(tensor("a", "F32", "[4611686018427387904,4]", "[0,0]")), ""),
       "more than any file has"},
      {with_length(header(tensor("a", "F32", "[-2]", "[0,8]")), eight), "expected sizes"},
      {with_length(header(tensor("a", "F32", "[2.5]", "[0,8]")), eight), "expected sizes"},
      {with_length(header(tensor("a", "F32", "[\"2\"]", "[0,8]")), eight), "expected sizes"},
      {with_length(header(tensor("a", "F32", "2", "[0,8]")), eight), "\"shape\" must be"},
      {with_length(header(tensor("a", "F32", "[2]", "[8,0]")), eight), "after their end"},
      {with_length(header(tensor("a", "F32", "[2]", "[-8,0]")), eight), "two byte offsets"},
      {with_length(header(tensor("a", "F32", "[2]", "[0]")), eight), "two byte offsets"},
      {with_length(header(tensor("a", "F32", "[2]", "[0,18446744073709551615]")), eight),
       "beyond any file"},
      {with_length(header(tensor("a", "F32", "[2]", "[8,16]")), eight), "cut short"},
      {with_length(header(tensor("a", "F32", "[1]", "[4,8]")), eight), "belong to no tensor"},
      {with_length(
           header(tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[1]", "[4,8]")),
           eight),
       "overlaps"},
      {with_length(
           header(tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F16", "[1]", "[6,8]")),
           eight),
       "belong to no tensor"},
      {with_length("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", eight),
       "\"dtype\" is missing"},
      {with_length("{\"__metadata__\":{\"a\":1}}", ""), "expected a string"},
      {with_length("{\"__metadata__\":[]}", ""), "__metadata__"},
  };
  for (const Case& c : cases) {
    std::string message = error_of(c.file);
    EXPECT_PRED2(contains, message, c.message);
    EXPECT_PRED2(contains, message, "w.safetensors");
  }
  // A size of 0 makes any other size harmless.
  EXPECT_EQ(
      error_of(with_length(header(tensor("a", "F32", "[4611686018427387904,4,0]", "[0,0]")), "")),
      "");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  std::string file = with_length("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", "12345678");
  for (size_t n = 0; n < file.size(); ++n) EXPECT_NE(error_of(file.substr(0, n)), "") << n;
  EXPECT_EQ(error_of(file), "");
}

void write_one(const std::filesystem::path& path, const std::string& name, float value) {
  SafetensorsWriter out(path);
  std::vector<float> values = {value};
  out.declare(name, DType::kF32, {1});
  out.write(name, bytes_of(values));
  out.commit();
}

TEST(SafetensorsSet, OpensFileFolderAndShards) {
  TemporaryFolder folder("set");
  write_one(folder / "model.safetensors", "w", 3);
  for (const auto& path : {folder.path(), folder / "model.safetensors"}) {
    SafetensorsSet set = SafetensorsSet::open(path);
    EXPECT_EQ(set.names(), std::vector<std::string>{"w"});
    EXPECT_EQ(set.total_bytes(), 4u);
    EXPECT_EQ(set.find("w").bytes().size(), 4u);
    EXPECT_FALSE(set.find("v"));
  }
  TemporaryFolder sharded("set_shards");
  write_one(sharded / "m-1.safetensors", "x", 1);
  write_one(sharded / "m-2.safetensors", "a", 2);
  sharded.write(
      "model.safetensors.index.json",
      R"({"metadata": {}, "weight_map": {"x": "m-1.safetensors", "a": "m-2.safetensors"}})");
  SafetensorsSet set = SafetensorsSet::open(sharded.path());
  EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "x"}));
  EXPECT_EQ(set.files().size(), 2u);
  float value = 0;
  std::memcpy(&value, set.find("a").bytes().data(), 4);
  EXPECT_EQ(value, 2);
}

TEST(SafetensorsSet, NamesWhatIsMissing) {
  TemporaryFolder folder("set_bad");
  auto error = [&] { return message_of([&] { SafetensorsSet::open(folder.path()); }); };
  auto index = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return error();
  };
  EXPECT_PRED2(contains, error(), "is the download complete?");
  folder.write("pytorch_model.bin", "x");
  EXPECT_PRED2(contains, error(), "convert to safetensors");
  write_one(folder / "m-1.safetensors", "x", 1);
  EXPECT_PRED2(contains, error(), "has m-1.safetensors but neither");
  EXPECT_PRED2(contains,
               index(R"({"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors"}})"),
               "names m-2.safetensors, which is not in the folder");
  EXPECT_PRED2(contains, index(R"({"weight_map": {"y": "m-1.safetensors"}})"),
               "tensor y should be in m-1.safetensors");
  for (const char* path : {"../m-1.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b",
                           "m-1.safetensors\\u0000"})
    EXPECT_PRED2(contains, index(cat("{\"weight_map\": {\"x\": \"", path, "\"}}")),
                 "only plain file names")
        << path;
  EXPECT_PRED2(contains, index("{}"), "\"weight_map\" must be");
  EXPECT_PRED2(contains, index(R"({"weight_map": {}})"), "\"weight_map\" must be");
  EXPECT_PRED2(contains, index(R"({"weight_map": {"x": 3}})"), "expected a file name");
  EXPECT_PRED2(contains, index("[]"), "\"weight_map\" must be");
  EXPECT_THROW(SafetensorsSet::open(folder / "nothing"), Error);
  // A cache whose blob was deleted.
  std::filesystem::remove(folder / "model.safetensors.index.json");
  std::filesystem::create_symlink("../blobs/gone", folder / "model.safetensors");
  EXPECT_PRED2(contains, error(), "model.safetensors: a link to ../blobs/gone, which is not there");
}

}  // namespace
}  // namespace wick
