#pragma once

// Checks of what a caller passed. The message is built only when the condition fails.
//
//   check(root < world_size, "broadcast: root {} is outside the group of {} ranks", root, size);
//
// For sources only: it pulls in fmt, which public headers must not.

#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"

namespace paceline {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::kInvalid, format, std::forward<Args>(args)...);
  }
}

}  // namespace paceline
