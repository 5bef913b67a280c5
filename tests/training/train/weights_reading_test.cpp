// Weight files of other programs, valid and broken, read by read_weights().

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <torch/torch.h>

#include "paceline/training/train/checkpoints/weights_file.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

using namespace std::string_literals;

// A file with this header and `data_bytes` bytes of data: 0, 1, 2, ...
std::string file_with(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte) file += static_cast<char>(header.size() >> (8 * byte));
  file += header;
  for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  std::size_t begin, std::size_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, type,
                     shape, begin, end);
}

class WeightsReading : public testing::Test {
 protected:
  std::string shard(const std::string& name, const StateDict& tensors) const {
    write_weights(folder_.file(name), tensors);
    return folder_.file(name);
  }
  // Two shards and their index, as Hugging Face writes them.
  std::string sharded() const {
    shard("model-00001-of-00002.safetensors", {{"a", at::ones({2})}, {"b", at::zeros({3})}});
    shard("model-00002-of-00002.safetensors", {{"c", at::full({4}, 5.0)}});
    return index(R"("a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
                 R"("c":"model-00002-of-00002.safetensors")");
  }
  std::string index(const std::string& map) const {
    return folder_.write("model.safetensors.index.json",
                         R"({"metadata":{"total_size":36},"weight_map":{)" + map + "}}");
  }
  void expect_refused(const std::string& file, const std::vector<std::string>& words,
                      ErrorCode code = ErrorCode::kCorrupt) const {
    const std::string path = folder_.write("a.safetensors", file);
    std::vector<std::string> all = words;
    all.push_back("a.safetensors");
    expect_error(code, all, [&] { read_weights(path); });
  }

  const FreshDirectory folder_;
};

TEST_F(WeightsReading, shards_are_read_by_their_index_and_by_their_folder) {
  const std::string index = sharded();
  for (const std::string& path : {index, folder_.path(), folder_.path() + "/"}) {
    const StateDict weights = read_weights(path);
    ASSERT_EQ(weights.size(), 3U) << path;
    EXPECT_TRUE(torch::equal(weights.at("a"), at::ones({2})));
    EXPECT_TRUE(torch::equal(weights.at("c"), at::full({4}, 5.0)));
  }
  shard("model.safetensors", {{"one", at::ones({1})}});  // takes precedence, as in transformers
  EXPECT_EQ(read_weights(folder_.path()).count("one"), 1U);
}

// Hugging Face's cache: snapshots/REVISION/NAME is a link to ../../blobs/HASH.
TEST_F(WeightsReading, links_are_followed) {
  const std::string index = sharded();
  std::filesystem::create_directory(folder_.file("snapshot"));
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"})
    std::filesystem::create_symlink("../"s + name, folder_.file("snapshot/"s + name));
  EXPECT_EQ(read_weights(folder_.file("snapshot")).size(), 3U);
  EXPECT_EQ(read_weights(folder_.file("snapshot/model-00002-of-00002.safetensors")).size(), 1U);
  std::filesystem::create_symlink("nothing", folder_.file("dangling.safetensors"));
  expect_error(ErrorCode::kCorrupt, {"dangling.safetensors", "the link points to nothing"},
               [&] { read_weights(folder_.file("dangling.safetensors")); });
  std::filesystem::create_symlink("loop.safetensors", folder_.file("loop.safetensors"));
  expect_error(ErrorCode::kCorrupt, {"loop.safetensors", "Too many levels of symbolic links"},
               [&] { read_weights(folder_.file("loop.safetensors")); });
}

TEST_F(WeightsReading, an_index_that_does_not_fit_its_shards_is_refused) {
  const std::string first = "model-00001-of-00002.safetensors";
  const auto refused = [&](const std::string& map, const std::vector<std::string>& words) {
    const std::string path = index(map);
    expect_error(ErrorCode::kCorrupt, words, [&] { read_weights(path); });
  };
  sharded();
  const std::string a = R"("a":")" + first + "\"", b = R"("b":")" + first + "\"";
  refused(a + "," + b + R"(,"d":")" + first + "\"", {first, "promises the tensor \"d\""});
  refused(a, {first, "has the tensor \"b\", which the index does not expect there"});
  refused(a + "," + b + R"(,"c":"model-00003-of-00003.safetensors")",
          {"model-00003-of-00003.safetensors with 1 of its tensors, such as \"c\", is missing"});
  for (const std::string& name : {"../" + first, folder_.file(first), "sub/" + first, ".."s, "."s,
                                  ""s, first + "/"s, "a\\u0000b"s})
    refused(a + R"(,"b":")" + name + "\"", {"\"b\"", "is not the name of a file beside the index"});
  refused(a + ",\"b\":7", {"the file of tensor \"b\" is not a string"});
  refused(a + "," + a, {"\"a\" is named twice"});
  refused("", {"\"weight_map\""});
  folder_.write("model.safetensors.index.json", "{}");
  expect_error(ErrorCode::kCorrupt, {"weight_map"}, [&] { read_weights(folder_.path()); });
  folder_.write("model.safetensors.index.json", "<!DOCTYPE html>");
  expect_error(ErrorCode::kCorrupt, {"a web page"}, [&] { read_weights(folder_.path()); });
  folder_.write("model.safetensors.index.json", "[1]");
  expect_error(ErrorCode::kCorrupt, {"not a JSON object"}, [&] { read_weights(folder_.path()); });
}

TEST_F(WeightsReading, a_shard_that_is_no_regular_file_is_refused_without_waiting) {
  ASSERT_EQ(::mkfifo(folder_.file("pipe.safetensors").c_str(), 0600), 0);
  expect_error(ErrorCode::kCorrupt, {"pipe.safetensors", "not a regular file"},
               [&] { read_weights(folder_.file("pipe.safetensors")); });
  const std::string path = index(R"("a":"pipe.safetensors")");
  expect_error(ErrorCode::kCorrupt, {"pipe.safetensors", "not a regular file"},
               [&] { read_weights(path); });
}

TEST_F(WeightsReading, a_folder_without_weights_says_what_it_has) {
  folder_.write("pytorch_model.bin", "x");
  expect_error(ErrorCode::kCorrupt,
               {folder_.path(), "model.safetensors.index.json", "it has pytorch_model.bin",
                "tools/torch_weights.py"},
               [&] { read_weights(folder_.path()); });
}

TEST_F(WeightsReading, what_stands_in_a_files_place_is_named) {
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n",
                 {"Git LFS", "git lfs pull"});
  expect_refused("<!DOCTYPE html>\n<html>", {"a web page", "/resolve/"});
  expect_refused("  <html><head>", {"a web page"});
  expect_refused("PK\x03\x04\0\0\x08\x08\0\0"s, {"torch.save", "tools/torch_weights.py"});
  expect_refused("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j", {"torch.save"});
  expect_refused("GGUF\x03\0\0\0\x01\0\0\0"s, {"GGUF"});
  expect_refused("\x89HDF\r\n\x1a\n", {"HDF5"});
  expect_refused("\x1f\x8b\x08\0\0\0\0\0\0"s, {"gzip"});
  expect_refused("{\"error\":\"Repository not found\"}", {"JSON text"});
  expect_refused("", {"0 bytes are too few"});
  expect_refused("1234567", {"7 bytes are too few"});
}

// Each file is broken in one way; the intact file is read.
TEST_F(WeightsReading, a_file_that_is_broken_is_refused_with_the_tensors_name) {
  const std::string a = entry("a", "U8", "[2]", 0, 2), b = entry("b", "U8", "[2]", 2, 4);
  const std::string whole = file_with("{" + a + "," + b + "}", 4);
  EXPECT_EQ(read_weights(folder_.write("a.safetensors", whole)).size(), 2U);
  for (std::size_t size = 8; size < whole.size(); ++size)  // a download that was cut anywhere
    expect_refused(whole.substr(0, size), {"cut or still be downloading"});
  expect_refused(whole + "x", {"end at data byte 4 of 5"});
  expect_refused(std::string(8, '\xff') + whole.substr(8), {"over the limit"});
  expect_refused(file_with("{" + a + "," + entry("b", "U8", "[3]", 1, 4) + "}", 4),
                 {"\"b\"", "overlap"});
  expect_refused(file_with("{" + a + "," + entry("b", "U8", "[1]", 3, 4) + "}", 4),
                 {"\"b\"", "hole"});
  expect_refused(file_with("{" + a + "," + entry("a", "U8", "[2]", 2, 4) + "}", 4),
                 {"\"a\" is named twice"});
  expect_refused(file_with("{" + a + "," + entry("b", "F32", "[2]", 2, 4) + "}", 4),
                 {"\"b\"", "do not match its type and shape"});
  expect_refused(file_with("{" + a + "," + entry("b", "U8", "[-2]", 2, 4) + "}", 4), {"\"b\""});
  expect_refused(file_with("{" + entry("a", "U8", "[4611686018427387904,8]", 0, 4) + "}", 4),
                 {"\"a\""});
  // The place of a tensor is checked even if the engine does not have its element type.
  expect_refused(file_with("{" + a + "," + entry("b", "F8_E4M3", "[3]", 1, 4) + "}", 4),
                 {"\"b\"", "overlap"});
  expect_refused(file_with("{" + a + "," + entry("b", "F4", "[9]", 2, 9) + "}", 4),
                 {"\"b\"", "outside the 4 bytes"});
}

TEST_F(WeightsReading, element_types_that_cannot_be_computed_with_are_named_skipped_or_widened) {
  for (const char* type : {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F4", "F6_E2M3", "I4",
                           "U16", "U32", "U64", "C64", "new"}) {
    const std::string path = folder_.write(
        "a.safetensors",
        file_with("{" + entry("w", type, "[2]", 0, 8) + "," + entry("x", "U8", "[1]", 8, 9) + "}",
                  9));
    expect_error(ErrorCode::kUnsupported,
                 {"a.safetensors", "\"w\"", type, "ReadWeightsOptions::skip"},
                 [&] { read_weights(path); });
    const StateDict rest =
        read_weights(path, {.skip = [](const std::string& name) { return name == "w"; }});
    ASSERT_EQ(rest.size(), 1U) << type;
    EXPECT_EQ(rest.at("x").item<int>(), 8);
    if (type == "U32"s) {
      EXPECT_TRUE(
          torch::equal(read_weights(path, {.widen = true}).at("w"),
                       torch::tensor({std::int64_t{0x03020100}, std::int64_t{0x07060504}})));
    } else {  // too few or too many bytes for its shape, or no wider type
      expect_error(ErrorCode::kUnsupported, {"\"w\"", type},
                   [&] { read_weights(path, {.widen = true}); });
    }
  }
}

// The definition: (-1)^sign 2^(exponent - bias) (1 + fraction); without the 1 below the smallest
// exponent.
float defined(int bits, int mantissa, int bias, bool has_infinity) {
  const int exponent = (bits & 0x7F) >> mantissa, top = 0x7F >> mantissa;
  const double fraction = (bits & ((1 << mantissa) - 1)) / std::pow(2.0, mantissa);
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (has_infinity && exponent == top) {
    return static_cast<float>(fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                                            : std::numeric_limits<double>::quiet_NaN());
  }
  if (!has_infinity && (bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(exponent == 0 ? sign * std::pow(2.0, 1 - bias) * fraction
                                          : sign * std::pow(2.0, exponent - bias) * (1 + fraction));
}

TEST_F(WeightsReading, every_float_of_8_bits_is_widened_exactly) {
  for (const bool has_infinity : {false, true}) {
    const char* type = has_infinity ? "F8_E5M2" : "F8_E4M3";
    const std::string path = folder_.write(
        "a.safetensors", file_with("{" + entry("w", type, "[16,16]", 0, 256) + "}", 256));
    const at::Tensor found = read_weights(path, {.widen = true}).at("w");
    ASSERT_EQ(found.sizes(), at::IntArrayRef({16, 16}));
    ASSERT_EQ(found.scalar_type(), at::kFloat);
    for (int bits = 0; bits < 256; ++bits) {
      const float value = found.data_ptr<float>()[bits];
      const float wanted = has_infinity ? defined(bits, 2, 15, true) : defined(bits, 3, 7, false);
      if (std::isnan(wanted)) {
        EXPECT_TRUE(std::isnan(value)) << type << " " << bits;
      } else {
        EXPECT_EQ(value, wanted) << type << " " << bits;
        EXPECT_EQ(std::signbit(value), std::signbit(wanted)) << type << " " << bits;
      }
    }
  }
}

TEST_F(WeightsReading, half_types_are_widened_when_asked) {
  const std::string path = shard("a.safetensors", {{"half", at::full({2}, 1.5, at::kHalf)},
                                                   {"bfloat", at::full({2}, 2.5, at::kBFloat16)},
                                                   {"double", at::full({2}, 3.5, at::kDouble)},
                                                   {"long", at::full({2}, 4, at::kLong)}});
  EXPECT_EQ(read_weights(path).at("half").scalar_type(), at::kHalf);
  const StateDict wide = read_weights(path, {.widen = true});
  EXPECT_TRUE(torch::equal(wide.at("half"), at::full({2}, 1.5)));
  EXPECT_TRUE(torch::equal(wide.at("bfloat"), at::full({2}, 2.5)));
  EXPECT_EQ(wide.at("double").scalar_type(), at::kDouble);
  EXPECT_EQ(wide.at("long").scalar_type(), at::kLong);
}

}  // namespace
}  // namespace paceline
