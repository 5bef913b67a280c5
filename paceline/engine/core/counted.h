#pragma once

// Numbers with their nouns and units in sentences: "1 rank", "2 ranks", "64 KiB".

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace paceline {

// `noun` in the singular, with a plural in -s.
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
