#pragma once

// Checks of a caller's arguments, and phrases for messages. A message is built only when its check
// fails; the arguments of the message are always evaluated.
//
//   check(root < size, "broadcast: root {} is outside the group of {} ranks", root, size);
//
// Public headers must not include this header, because it includes fmt.

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"

namespace paceline {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail(ErrorCode code, ErrorContext context, fmt::format_string<Args...> format,
                       Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...), std::move(context));
}

template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(ErrorCode::kInvalid, format, std::forward<Args>(args)...);
  }
}

// The C++ name that a mangled name (from the linker or from type_info) stands for. Returns any
// other name unchanged.
std::string demangled(const char* name);

// Numbers with their nouns and units in sentences: "1 rank", "2 ranks", "64 KiB".

// Requires: `noun` is in the singular and has a plural in -s.
std::string counted(std::integral auto number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

// "64 KiB", "1.5 MiB", "1000 B".
inline std::string size_text(std::size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

}  // namespace paceline
