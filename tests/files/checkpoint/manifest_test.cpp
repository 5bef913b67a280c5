#include "paceline/files/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/core/bytes.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::error_of;

const Manifest kSample{.step = 42,
                       .run = "5d0c1f2e9a7b3c48",
                       .world_size = 2,
                       .files = {{"boxes-00000-of-00002.bin", 200, std::string(32, 'a')},
                                 {"boxes-00001-of-00002.bin", 100, std::string(32, 'b')}},
                       .tensors = {{"bias", Dtype::kBfloat16, {3}, {{{{0}, {3}}, 1, 0}}},
                                   {"empty", Dtype::kFloat32, {0, 4}, {}},
                                   {"scalar", Dtype::kInt64, {}, {{{{}, {}}, 0, 96}}},
                                   {"weight",
                                    Dtype::kFloat32,
                                    {4, 6},
                                    {{{{0, 0}, {4, 5}}, 0, 0}, {{{0, 5}, {4, 1}}, 1, 6}}}},
                       .metadata = {{"epoch", "3"}}};

// A manifest with one changed field and a correct checksum, as another program could write it.
std::string sealed_with(const char* key, const nlohmann::json& value) {
  auto json = nlohmann::json::parse(to_json(kSample));
  json.erase("xxh3_128_of_the_rest");
  json[nlohmann::json::json_pointer(key)] = value;
  json["xxh3_128_of_the_rest"] = digest_of(as_bytes(json.dump(1) + "\n"));
  return json.dump(1) + "\n";
}

Error refusal_of(const std::string& text) {
  return error_of([&] { parse_manifest(text, "manifest.json"); });
}

TEST(Digest, is_the_published_xxh3_128) {
  EXPECT_EQ(digest_of({}), "99aa06d3014798d86001c324468d497f");
}

TEST(Manifest, comes_back_as_it_was) {
  EXPECT_EQ(parse_manifest(to_json(kSample), "manifest.json"), kSample);
}

TEST(Manifest, every_flipped_bit_and_every_cut_is_refused) {
  const auto text = to_json(kSample);
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(changed, "m"), Error) << "byte " << i << " bit " << bit;
    }
    EXPECT_THROW(parse_manifest(text.substr(0, i), "m"), Error) << "cut at " << i;
  }
  EXPECT_THROW(parse_manifest(text + " ", "m"), Error);
}

TEST(Manifest, a_name_that_leaves_the_folder_is_refused) {
  for (const char* name :
       {"../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "manifest.json"}) {
    EXPECT_THAT(refusal_of(sealed_with("/files/0/name", name)).what(),
                Says("manifest.file_name_refused", "manifest.json", name));
  }
}

TEST(Manifest, a_field_of_another_type_is_refused) {
  EXPECT_EQ(refusal_of(sealed_with("/step", "x")).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(refusal_of(sealed_with("/run", 7)).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(refusal_of(sealed_with("/files", 1)).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(refusal_of(sealed_with("/metadata/epoch", 1)).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(refusal_of(sealed_with("/format", "other")).code(), ErrorCode::kCorrupt);
}

TEST(Manifest, boxes_that_are_not_the_tensor_each_element_once_are_refused) {
  const auto boxes = [](const nlohmann::json& value) {
    return std::string(refusal_of(sealed_with("/tensors/weight/boxes", value)).what());
  };
  const std::string whole = "0 0 0+4,0+5", last = "1 6 0+4,5+1";
  EXPECT_THAT(boxes({whole}), Says("manifest.box_missing", 4, 24));
  EXPECT_THAT(boxes({whole, last, last}), Says("manifest.box_twice", "[0:4, 5:6]"));
  EXPECT_THAT(boxes({whole, "1 6 0+4,4+2"}), Says("manifest.box_twice", "[0:4, 4:5]"));
  EXPECT_THAT(boxes({whole, "1 6 0+4,5+2"}), Says("manifest.box_outside_shape"));
  EXPECT_THAT(boxes({whole, "1 6 0+4,6+0"}), Says("manifest.box_outside_shape"));
  EXPECT_THAT(boxes({whole, "2 6 0+4,5+1"}), Says("manifest.box_outside_files"));
  EXPECT_THAT(boxes({whole, "1 99 0+4,5+1"}), Says("manifest.box_outside_files"));
  EXPECT_THAT(boxes({whole, "1 5 0+4,5+1"}),
              Says("manifest.byte_of_two_tensors", 5, "bias", "weight"));
  for (const char* text : {"", "1 6 0+4", "1 6 0+4,5+1,0+1", "1 6 0+4,05+1", "1 6 0+4,5+1 ",
                           "-1 6 0+4,5+1", "1 6 0+4,5+99999999999999999999"}) {
    EXPECT_THAT(boxes({whole, text}), Says("manifest.box_unreadable", text, 2)) << text;
  }
}

TEST(Manifest, a_shape_that_no_tensor_can_have_is_refused) {
  for (const nlohmann::json& shape : {nlohmann::json{-4, 6}, nlohmann::json{1LL << 62, 6}}) {
    EXPECT_THAT(refusal_of(sealed_with("/tensors/weight/shape", shape)).what(),
                Says("manifest.shape_refused"));
  }
  EXPECT_EQ(refusal_of(sealed_with("/tensors/weight/dtype", "float8")).code(),
            ErrorCode::kUnsupported);
}

TEST(Manifest, an_unknown_version_is_unsupported_and_named) {
  const auto error = refusal_of(sealed_with("/version", 4));
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), Says("manifest.version_unknown", "manifest.json", 4));
  EXPECT_EQ(refusal_of(sealed_with("/version", 2)).code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace paceline
