#include "paceline/files/text/unicode.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>

#include <utf8proc.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline::text {

namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_between(char32_t code, utf8proc_category_t first, utf8proc_category_t last) {
  if (code == kNoCharacter) return false;
  const auto found = category(code);
  return found >= first && found <= last;
}

}  // namespace

Character first_character(std::string_view text) {
  utf8proc_int32_t code = 0;
  const auto bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size(), 4)), &code);
  if (bytes <= 0) return {};
  return {static_cast<char32_t>(code), static_cast<std::size_t>(bytes)};
}

void append_utf8(char32_t code, std::string& to) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  to.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(count));
}

bool is_letter(char32_t code) {
  return is_between(code, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(char32_t code) {
  return is_between(code, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_space(char32_t code) {
  return (code >= '\t' && code <= '\r') || code == 0x85 ||
         is_between(code, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}

bool is_punctuation(char32_t code) {
  return is_between(code, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_control(char32_t code) {
  return is_between(code, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool is_accent(char32_t code) {
  return code != kNoCharacter && category(code) == UTF8PROC_CATEGORY_MN;
}

void append_plain_lower_case(char32_t code, std::string& to) {
  // The Turkish capital I with a dot is the only letter whose lower case has two characters; the
  // second is an accent, which is dropped anyway.
  const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(code));
  std::array<utf8proc_int32_t, 32> parts{};
  int last_class = 0;
  const auto count =
      utf8proc_decompose_char(lower, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &last_class);
  if (count <= 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
    append_utf8(static_cast<char32_t>(lower), to);
    return;
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
    if (!is_accent(part)) append_utf8(part, to);
  }
}

namespace {

// The end of the run of characters from `at` on for which `belongs` is true.
template <class Belongs>
std::size_t end_of_run(std::string_view text, std::size_t at, const Belongs& belongs) {
  while (at < text.size()) {
    const Character character = first_character(text.substr(at));
    if (!belongs(character.code)) break;
    at += character.bytes;
  }
  return at;
}

bool is_other(char32_t code) { return !is_space(code) && !is_letter(code) && !is_number(code); }

std::size_t length_of_contraction(std::string_view text) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(ending)) return ending.size();
  }
  return 0;
}

// The length of a word of white space. At the end of the text the word takes all of the white
// space; elsewhere it leaves the last of several characters to the next word.
std::size_t length_of_space(std::string_view text) {
  std::size_t end = 0;
  std::size_t last = 0;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    if (!is_space(character.code)) break;
    last = end;
    end += character.bytes;
  }
  return end == text.size() || last == 0 ? end : last;
}

std::size_t length_of_word(std::string_view text) {
  if (const std::size_t length = length_of_contraction(text)) return length;
  const std::size_t begin = text.front() == ' ' ? 1 : 0;
  if (begin < text.size()) {
    const char32_t code = first_character(text.substr(begin)).code;
    if (is_letter(code)) return end_of_run(text, begin, is_letter);
    if (is_number(code)) return end_of_run(text, begin, is_number);
    if (is_other(code)) return end_of_run(text, begin, is_other);
  }
  return length_of_space(text);
}

}  // namespace

std::vector<std::string_view> split_for_gpt2(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t length = length_of_word(text);
    words.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return words;
}

std::string read_text_file(const std::string& path, std::uint64_t max_bytes) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) fail(ErrorCode::kCorrupt, "{}: {}", path, error.message());
  if (!std::filesystem::is_regular_file(path)) {
    fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
  }
  if (bytes > max_bytes) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes exceed the limit of {}", path, bytes, max_bytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (static_cast<std::uint64_t>(file.gcount()) != bytes) {
    fail(ErrorCode::kCorrupt, "{}: only {} of {} bytes could be read", path, file.gcount(), bytes);
  }
  const auto bytes_read = std::as_bytes(std::span(text));
  const std::string_view mistaken = mistaken_file(bytes_read);
  if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", path, mistaken);
  text.erase(0, text_start(bytes_read, path));
  return text;
}

}  // namespace paceline::text
