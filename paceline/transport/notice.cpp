#include "paceline/transport/notice.h"

#include <algorithm>

namespace paceline {
namespace {

// One byte with the ErrorCode, two with the text's length, then the text.
constexpr std::size_t kHeader = 3;
constexpr char kGoodbye = 0x7f;  // in place of the ErrorCode; no length and no text follow

}  // namespace

std::string encode_notice(const Error& cause) {
  std::string text = cause.what();
  text.resize(std::min(text.size(), kMaxNoticeBytes - kHeader));
  std::string notice;
  notice.push_back(static_cast<char>(cause.code()));
  notice.push_back(static_cast<char>(text.size() & 0xff));
  notice.push_back(static_cast<char>(text.size() >> 8));
  return notice + text;
}

std::string encode_goodbye() { return std::string(1, kGoodbye); }

std::optional<Notice> decode_notice(std::span<const char> bytes) {
  if (bytes.empty()) return {};
  if (bytes[0] == kGoodbye) return Notice{.goodbye = true, .code = {}, .text = {}};
  const auto code = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() < kHeader || code > static_cast<unsigned char>(ErrorCode::kSystem)) return {};
  const auto length = static_cast<std::size_t>(static_cast<unsigned char>(bytes[1])) |
                      static_cast<std::size_t>(static_cast<unsigned char>(bytes[2])) << 8;
  const auto text = bytes.subspan(kHeader);
  if (length > text.size()) return {};
  return Notice{.goodbye = false,
                .code = static_cast<ErrorCode>(code),
                .text = std::string(text.data(), length)};
}

}  // namespace paceline
