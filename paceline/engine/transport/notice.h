#pragma once

// What a rank says on its control sockets when it ends its part in a group: why it failed, or
// goodbye. docs/wire_formats.md has the layout.

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "paceline/engine/core/error.h"

namespace paceline {

inline constexpr std::size_t kMaxNoticeBytes = 1027;

// Text beyond 1024 bytes is cut.
std::string encode_notice(const Error& cause);
std::string encode_goodbye();

struct Notice {
  bool goodbye = false;
  ErrorCode code{};
  std::string text;
};
// False for the beginning of a notice, of which more must come.
bool is_whole_notice(std::span<const char> bytes);
// Empty for bytes that are not a notice.
std::optional<Notice> decode_notice(std::span<const char> bytes);

}  // namespace paceline
