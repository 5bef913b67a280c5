#include "paceline/engine/core/file_start.h"

#include <algorithm>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kLfsPointer =
    "a pointer of Git LFS, not the file itself: fetch it with 'git lfs pull'";

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

// `words` are in lower case.
bool begins_with(std::string_view text, std::string_view words) {
  return text.size() >= words.size() &&
         std::ranges::equal(text.substr(0, words.size()), words, {}, lower);
}

bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/") ||
         text.starts_with("version https://hawser.github.com/spec/");
}

// The encoding that a byte order mark announces. UTF-32's mark begins with that of UTF-16.
std::string_view marked_encoding(std::string_view text) {
  if (text.starts_with("\xFF\xFE\0\0"sv)) return "UTF-32LE";
  if (text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32BE";
  if (text.starts_with("\xFF\xFE"sv)) return "UTF-16LE";
  if (text.starts_with("\xFE\xFF"sv)) return "UTF-16BE";
  return {};
}

}  // namespace

std::string_view mistaken_file(std::span<const std::byte> head) {
  std::string_view text = text_of(head);
  if (is_lfs_pointer(text)) return kLfsPointer;
  if (text.starts_with(kUtf8Mark)) text.remove_prefix(kUtf8Mark.size());
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  for (const auto begin : {"<!doctype"sv, "<html"sv, "<head"sv, "<body"sv, "<?xml"sv, "<error"sv}) {
    if (begins_with(text, begin)) {
      return "a web page, not the file itself: download it from the link that gives the raw file "
             "(on Hugging Face, /resolve/ in the place of /blob/)";
    }
  }
  return {};
}

std::size_t text_start(std::span<const std::byte> head, std::string_view where) {
  const std::string_view text = text_of(head);
  if (is_lfs_pointer(text)) fail(ErrorCode::kCorrupt, "{}: {}", where, kLfsPointer);
  const std::string_view encoding = marked_encoding(text);
  if (!encoding.empty()) {
    fail(ErrorCode::kCorrupt, "{0}: the text is {1}, not UTF-8; convert it: iconv -f {1} -t UTF-8",
         where, encoding);
  }
  return text.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0;
}

}  // namespace paceline
