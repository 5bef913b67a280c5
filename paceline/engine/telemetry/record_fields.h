#pragma once

// What the writers of flight files, timelines and call gauges share, and their readers.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <unistd.h>

namespace paceline {

// Cuts what has no room; the field ends with a zero, as it was made.
template <std::size_t N>
void put_text(std::array<char, N>& field, std::string_view text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), N - 1));
}

// Up to the first zero; what a terminal might obey becomes '?'.
inline std::string printable(const char* begin, std::size_t length) {
  std::string text(begin, strnlen(begin, length));
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}
template <std::size_t N>
std::string printable(const std::array<char, N>& field) {
  return printable(field.data(), N);
}

// Linux's number of the calling thread, asked for once.
inline std::uint32_t this_thread() noexcept {
  thread_local const auto id = static_cast<std::uint32_t>(gettid());
  return id;
}

}  // namespace paceline
