#include "paceline/files/text/unicode.h"

#include <gtest/gtest.h>

namespace paceline::text {
namespace {

TEST(Unicode, a_text_is_read_character_by_character) {
  const std::string_view text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";  // a, e acute, euro, smile
  const std::vector<Character> wanted{{'a', 1}, {0xE9, 2}, {0x20AC, 3}, {0x1F600, 4}};
  std::size_t at = 0;
  for (const Character& character : wanted) {
    const Character found = first_character(text.substr(at));
    EXPECT_EQ(found.code, character.code);
    EXPECT_EQ(found.bytes, character.bytes);
    at += found.bytes;
  }
  EXPECT_EQ(at, text.size());
}

TEST(Unicode, a_byte_that_is_no_character_stands_alone) {
  for (const std::string_view text : {"\xFF", "\x80", "\xC3", "\xC0\xAF", "\xED\xA0\x80"}) {
    const Character found = first_character(text);
    EXPECT_EQ(found.code, kNoCharacter);
    EXPECT_EQ(found.bytes, 1U);
  }
  EXPECT_FALSE(is_letter(kNoCharacter) || is_number(kNoCharacter) || is_space(kNoCharacter) ||
               is_punctuation(kNoCharacter) || is_control(kNoCharacter) || is_accent(kNoCharacter));
}

TEST(Unicode, what_is_appended_is_read_back) {
  for (const char32_t code : {U'a', U'\u00E9', U'\u20AC', U'\U0001F600'}) {
    std::string text;
    append_utf8(code, text);
    EXPECT_EQ(first_character(text).code, code);
  }
}

TEST(Unicode, characters_have_their_categories) {
  EXPECT_TRUE(is_letter(U'Z') && is_letter(U'\u00DF') && is_letter(U'\u4E2D'));
  EXPECT_TRUE(is_number(U'7') && is_number(U'\u00B2') && is_number(U'\u2163'));
  EXPECT_TRUE(is_space(U' ') && is_space(U'\n') && is_space(U'\u00A0') && is_space(U'\u2028'));
  for (const char32_t code : {U'\x1C', U'\x1D', U'\x1E', U'\x1F'})  // like GPT-2's \s
    EXPECT_FALSE(is_space(code));
  EXPECT_TRUE(is_punctuation(U'!') && is_punctuation(U'\u00BF') && !is_punctuation(U'+'));
  EXPECT_TRUE(is_control(U'\x07') && is_control(U'\u200B') && !is_control(U'a'));
  EXPECT_TRUE(is_accent(U'\u0301') && !is_accent(U'\u00E9'));
}

TEST(Unicode, plain_lower_case_has_no_accents) {
  const auto plain = [](char32_t code) {
    std::string text;
    append_plain_lower_case(code, text);
    return text;
  };
  EXPECT_EQ(plain(U'A'), "a");
  EXPECT_EQ(plain(U'\u00C9'), "e");
  EXPECT_EQ(plain(U'\u1EA4'), "a");  // two accents
  EXPECT_EQ(plain(U'\u0130'), "i");
  EXPECT_EQ(plain(U'\u0301'), "");
  EXPECT_EQ(plain(U'\u00DF'), "\xC3\x9F");
}

}  // namespace
}  // namespace paceline::text
