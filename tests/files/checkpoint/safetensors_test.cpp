#include "paceline/files/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::error_of;
using ::testing::HasSubstr;

std::string file_with(const std::string& header, std::size_t data_bytes = 0) {
  std::string length;
  for (int byte = 0; byte < 8; ++byte) length += static_cast<char>(header.size() >> (8 * byte));
  return length + header + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(as_bytes(file), file.size(), "shard");
}

Error refusal_of_file(const std::string& file) {
  return error_of([&] { parse(file); });
}

Error refusal_of_header(const std::string& header, std::size_t data_bytes = 0) {
  return refusal_of_file(file_with(header, data_bytes));
}

TEST(Safetensors, the_bytes_are_those_of_the_published_format) {
  const std::vector<TensorEntry> tensors = {{"a", Dtype::kUint8, {2}, 2},
                                            {"b", Dtype::kFloat32, {1, 1}, 4}};
  const auto layout = plan_safetensors(tensors, {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[4,6],"dtype":"U8","shape":[2]},)"
      R"("b":{"data_offsets":[0,4],"dtype":"F32","shape":[1,1]}})";
  const auto padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(layout.head, file_with(padded));
  EXPECT_EQ(layout.head.size() % 8, 0U);
  EXPECT_EQ(layout.order, (std::vector<std::size_t>{1, 0}));
}

TEST(Safetensors, every_type_and_shape_comes_back) {
  std::vector<TensorEntry> tensors;
  for (const auto dtype : kAllDtypes) {
    const std::string name(name_of(dtype));
    tensors.push_back({name, dtype, {2, 3}, 6 * size_of(dtype)});
    tensors.push_back({name + ".empty", dtype, {2, 0, 3}, 0});
    tensors.push_back({name + ".scalar", dtype, {}, size_of(dtype)});
  }
  const auto layout = plan_safetensors(tensors, {});
  std::string file = layout.head;
  for (const auto index : layout.order) file += std::string(tensors[index].bytes, 'x');
  const auto parsed = parse(file);
  ASSERT_EQ(parsed.tensors.size(), tensors.size());
  std::uint64_t position = parsed.data;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& found = parsed.tensors[i];
    const TensorEntry& given = *std::ranges::find(tensors, found.name, &TensorEntry::name);
    EXPECT_EQ(found.dtype, given.dtype);
    EXPECT_EQ(found.shape, given.shape);
    EXPECT_EQ(found.bytes, given.bytes);
    if (found.bytes == 0) continue;
    EXPECT_EQ(position % size_of(found.dtype), 0U) << found.name;
    position += found.bytes;
  }
  EXPECT_EQ(position, file.size());
}

TEST(Safetensors, an_empty_file_of_no_tensors_is_valid) {
  EXPECT_TRUE(parse(plan_safetensors({}, {}).head).tensors.empty());
}

TEST(Safetensors, a_wrong_tensor_of_the_caller_is_named) {
  const auto refusal = [&](TensorEntry tensor, std::map<std::string, std::string> metadata = {}) {
    tensor.bytes = 2;
    const auto error = error_of([&] {
      plan_safetensors({tensor, {"z", Dtype::kUint8, {0}, 0}}, metadata);
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal({"fc.weight", Dtype::kFloat32, {2}}),
              Says("safetensors.size_of_given_tensor", "fc.weight", 2));
  EXPECT_THAT(refusal({"n", Dtype::kUint8, {-2}}), Says("safetensors.size_of_given_tensor", "n"));
  EXPECT_THAT(
      refusal({"o", Dtype::kUint8, {INT64_MAX, 4, 2}}),
      Says("safetensors.size_of_given_tensor", "o", 2, 3, "uint8", "more than there can be"));
  EXPECT_THAT(refusal({"", Dtype::kUint8, {2}}), Says("safetensors.name_refused", ""));
  EXPECT_THAT(refusal({"__metadata__", Dtype::kUint8, {2}}),
              Says("safetensors.name_refused", "__metadata__"));
  EXPECT_THAT(refusal({"z", Dtype::kUint8, {2}}), Says("safetensors.name_taken", "z"));
  EXPECT_THAT(refusal({"\xff", Dtype::kUint8, {2}}), Says("safetensors.given_text_not_utf8"));
  EXPECT_THAT(refusal({"x", Dtype::kUint8, {2}}, {{"k", std::string(17U << 20, 'v')}}),
              Says("safetensors.given_header_too_long"));
}

TEST(Safetensors, a_hostile_length_is_refused_before_anything_is_read) {
  EXPECT_THAT(refusal_of_file("1234567").what(), Says("safetensors.file_too_short", "shard", 7));
  EXPECT_THAT(refusal_of_file(std::string(8, '\xff')).what(),
              Says("safetensors.header_over_limit"));
  EXPECT_THAT(refusal_of_file(std::string("\0\0\0\0\0\0\0\x80", 8)).what(),
              Says("safetensors.header_over_limit"));
  EXPECT_THAT(refusal_of_file(std::string("\x10\0\0\0\0\0\0\0{}", 10)).what(),
              Says("safetensors.header_past_end"));
  EXPECT_THAT(refusal_of_file(std::string(8, '\0')).what(),
              Says("safetensors.header_without_object"));
  EXPECT_THAT(refusal_of_header(" {}").what(), Says("safetensors.header_without_object"));
  // The names of ten million tensors do not fit into a header of 16 MiB: the limit refuses the file
  // before the names are read.
  const std::string ten_million = file_with("{" + std::string(10'000'000 * 8, '1'));
  EXPECT_THAT(refusal_of_file(ten_million).what(), Says("safetensors.header_over_limit"));
}

TEST(Safetensors, a_hostile_header_is_refused) {
  EXPECT_THAT(refusal_of_header("{").what(), Says("json.not_valid"));
  EXPECT_THAT(refusal_of_header("{}{}").what(), Says("json.not_valid"));
  EXPECT_THAT(refusal_of_header(R"({"a":)" + std::string(8U << 20, '[')).what(),
              Says("json.too_deep", "shard", 3));
  const std::string a = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refusal_of_header("{\"a\":" + a + ",\"a\":" + a + "}", 1).what(),
              Says("json.name_twice", "shard", "a"));
  EXPECT_THAT(refusal_of_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1]}})", 1).what(),
              Says("json.name_twice", "shard", "dtype"));
  EXPECT_THAT(refusal_of_header("{\"\xff\":1}").what(), Says("json.not_valid"));
  EXPECT_THAT(refusal_of_header(R"({"__metadata__":{"a":1}})").what(),
              Says("safetensors.metadata_not_text"));
  EXPECT_THAT(refusal_of_header(R"({"__metadata__":[]})").what(),
              Says("safetensors.metadata_not_object"));
  const auto unknown =
      refusal_of_header(R"({"a":{"dtype":"F8_E4M3","shape":[],"data_offsets":[0,1]}})", 1);
  EXPECT_EQ(unknown.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(unknown.what(), Says("safetensors.unknown_type", "shard", "a", "F8_E4M3"));
}

TEST(Safetensors, a_hostile_range_is_refused_with_the_tensor_named) {
  const auto one = [](const std::string& entry, std::size_t data) {
    const auto error = refusal_of_header("{\"fc\":" + entry + "}", data);
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), HasSubstr("shard"));
    return std::string(error.what());
  };
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", 8),
              Says("safetensors.range_outside", "shard", "fc", 0, 9, 8));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[2,1]})", 8),
              Says("safetensors.range_outside"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 8),
              Says("safetensors.range_not_numbers"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1e0]})", 8),
              Says("safetensors.range_not_numbers"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 8),
              Says("safetensors.range_not_numbers"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1),
              Says("safetensors.shape_refused"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})", 1),
              Says("safetensors.shape_refused"));
  EXPECT_THAT(one(R"({"dtype":"F64","shape":[4611686018427387904,8],"data_offsets":[0,0]})", 0),
              Says("safetensors.size_of_stored_tensor"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[4611686018427387904,8,0],"data_offsets":[0,0]})", 0),
              Says("safetensors.size_of_stored_tensor"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,3]})", 3),
              Says("safetensors.size_of_stored_tensor"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", 2),
              Says("safetensors.range_not_next", "shard", "fc", 1, 0, "hole"));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 2),
              Says("safetensors.end_too_early", "shard", 1, 2));
  EXPECT_THAT(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1})", 1),
              Says("safetensors.fields_refused"));
  EXPECT_THAT(one(R"([1,2,3])", 1), Says("safetensors.fields_refused"));
  const auto overlap = refusal_of_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                         R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                                         3);
  EXPECT_THAT(overlap.what(), Says("safetensors.range_not_next", "shard", "b", 1, 2, "overlap"));
}

}  // namespace
}  // namespace paceline
