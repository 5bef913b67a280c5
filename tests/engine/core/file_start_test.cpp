#include <string>

#include <gtest/gtest.h>

#include "paceline/engine/core/system/safe_files.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

const std::string kLfs =
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e"
    "adbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

TEST(FileStart, what_a_download_leaves_in_a_files_place_is_recognised) {
  for (const std::string& lfs : {kLfs, kLfs.substr(0, 60)})
    EXPECT_THAT(mistaken_file(bytes_of(lfs)), Says("file.is_lfs_pointer")) << lfs;
  for (const std::string& page :
       {"<!DOCTYPE html><html>"s, "<!doctype HTML>"s, "\n\n  <html lang=\"en\">"s,
        "\xEF\xBB\xBF<html>"s, "<HEAD>"s, "<body>"s,
        "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"s, "<Error>"s})
    EXPECT_THAT(mistaken_file(bytes_of(page)), Says("file.is_web_page")) << page;
  for (const std::string& other : {""s, "v"s, "version 2"s, "\x89PNG\r\n\x1a\n"s, "\xff\xd8\xff"s,
                                   "<"s, "< html"s, "   "s, "{\"a\":1}"s, "\0\0\x08\x03"s})
    EXPECT_EQ(mistaken_file(bytes_of(other)), "") << other;
}

TEST(FileStart, a_text_begins_behind_the_mark_of_utf_8_and_other_encodings_are_refused) {
  struct Case {
    std::string text;
    std::size_t start;
  };
  for (const Case& one : {Case{"", 0},
                          {"a", 0},
                          {"\xEF\xBB\xBF", 3},
                          {"\xEF\xBB\xBFword", 3},
                          {"\xEF\xBB", 0},
                          {"\xEF\xBB\xBF\xEF\xBB\xBF", 3},
                          {"word\xEF\xBB\xBF", 0},
                          {"\xFF", 0},
                          {"version https", 0}})
    EXPECT_EQ(text_start(bytes_of(one.text), "file"), one.start) << one.text;
  struct Refused {
    std::string text, encoding;
  };
  for (const Refused& one : {Refused{"\xFF\xFE"s + "a\0"s, "UTF-16LE"},
                             {"\xFE\xFF\0a"s, "UTF-16BE"},
                             {"\xFF\xFE"s, "UTF-16LE"},
                             {"\xFF\xFE\0\0a\0\0\0"s, "UTF-32LE"},
                             {"\0\0\xFE\xFF\0\0\0a"s, "UTF-32BE"}})
    expect_error(ErrorCode::kCorrupt,
                 {"file: ", one.encoding, "iconv -f " + one.encoding + " -t UTF-8"},
                 [&] { text_start(bytes_of(one.text), "file"); });
  expect_error(ErrorCode::kCorrupt, {"file: ", "Git LFS", "git lfs pull"},
               [&] { text_start(bytes_of(kLfs), "file"); });
}

}  // namespace
}  // namespace paceline
