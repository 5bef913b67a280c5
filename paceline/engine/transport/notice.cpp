#include "paceline/engine/transport/notice.h"

#include <algorithm>

namespace paceline {
namespace {

// One byte with the ErrorCode, two with the text's length, then the text.
constexpr std::size_t kHeader = 3;
constexpr std::size_t kMaxText = kMaxNoticeBytes - kHeader;
constexpr char kGoodbye = 0x7f;  // in place of the ErrorCode; no length and no text follow

bool begins_with_code(std::span<const char> bytes) {
  return static_cast<unsigned char>(bytes[0]) <= static_cast<unsigned char>(ErrorCode::kSystem);
}

// Of the text. Requires: the whole header.
std::size_t length_in(std::span<const char> bytes) {
  return static_cast<std::size_t>(static_cast<unsigned char>(bytes[1])) |
         static_cast<std::size_t>(static_cast<unsigned char>(bytes[2])) << 8;
}

}  // namespace

std::string encode_notice(const Error& cause) {
  std::string text = cause.what();
  text.resize(std::min(text.size(), kMaxText));
  std::string notice;
  notice.push_back(static_cast<char>(cause.code()));
  notice.push_back(static_cast<char>(text.size() & 0xff));
  notice.push_back(static_cast<char>(text.size() >> 8));
  return notice + text;
}

std::string encode_goodbye() { return std::string(1, kGoodbye); }

bool is_whole_notice(std::span<const char> bytes) {
  if (bytes.empty()) return false;
  if (!begins_with_code(bytes)) return true;  // the goodbye, or no notice at all
  if (bytes.size() < kHeader) return false;
  return length_in(bytes) > kMaxText || bytes.size() - kHeader >= length_in(bytes);
}

std::optional<Notice> decode_notice(std::span<const char> bytes) {
  if (!is_whole_notice(bytes)) return {};
  if (bytes[0] == kGoodbye) return Notice{.goodbye = true, .code = {}, .text = {}};
  if (!begins_with_code(bytes) || length_in(bytes) > kMaxText) return {};
  return Notice{.goodbye = false,
                .code = static_cast<ErrorCode>(bytes[0]),
                .text = std::string(bytes.subspan(kHeader).data(), length_in(bytes))};
}

}  // namespace paceline
