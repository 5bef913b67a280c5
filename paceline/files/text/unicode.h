#pragma once

// The characters of a UTF-8 text and their classes, by utf8proc and its version of Unicode; and
// reading a vocabulary's file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::text {

// A byte that belongs to no character counts as one with this code.
inline constexpr char32_t kNoCharacter = 0xFFFFFFFF;

struct Character {
  char32_t code = kNoCharacter;
  std::size_t bytes = 1;
};

// Requires: `text` is not empty.
Character first_character(std::string_view text);
void append_utf8(char32_t code, std::string& to);

bool is_letter(char32_t code);  // category L
bool is_number(char32_t code);  // category N
// Unicode's property White_Space, which is \s in the regular expressions of GPT-2's tokenizer. (\s
// of Python's module re also has U+001C to U+001F.)
bool is_space(char32_t code);
bool is_punctuation(char32_t code);  // category P
bool is_control(char32_t code);      // categories Cc, Cf and Co: control, format, private use
bool is_accent(char32_t code);       // category Mn: marks that take no room of their own

// Appends the lower-case letters of `code`, in their canonical decomposition (NFD) and without
// accents.
void append_plain_lower_case(char32_t code, std::string& to);

// The text of a regular file of a vocabulary, without a byte order mark of UTF-8. Error(kCorrupt)
// with its name when it is missing, no regular file, a web page or a pointer of Git LFS in its
// place, marked as another encoding, cannot be read or has more than `max_bytes`.
std::string read_text_file(const std::string& path, std::uint64_t max_bytes = 1ULL << 32);

}  // namespace paceline::text
