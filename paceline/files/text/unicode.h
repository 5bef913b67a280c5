#pragma once

// Functions for the characters of UTF-8 text (their classes are those of utf8proc's version of
// Unicode) and for its words, and a reader for vocabulary files.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::text {

// The code of a byte that belongs to no character.
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
bool is_control(char32_t code);      // category C, except Cn (codes that are not assigned)
bool is_accent(char32_t code);       // category Mn: nonspacing marks

// Appends the lower case of `code`, in canonical decomposition (NFD) and without accents.
void append_plain_lower_case(char32_t code, std::string& to);

// The words into which GPT-2 cuts a text before it encodes each of them (BpeTokenizer), in order;
// concatenated, they are the text.
std::vector<std::string_view> split_for_gpt2(std::string_view text);

// Reads a vocabulary's file and drops a UTF-8 byte order mark. Throws Error(kCorrupt), which names
// the file, when it is missing, is not a regular file, is a web page or a pointer of Git LFS, is
// marked as another encoding, cannot be read, or has more than `max_bytes` bytes.
std::string read_text_file(const std::string& path, std::uint64_t max_bytes = 1ULL << 32);

}  // namespace paceline::text
