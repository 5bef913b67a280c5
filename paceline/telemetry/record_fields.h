#pragma once

// What the writers of flight files and timelines share.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <unistd.h>

namespace paceline {

// Cuts what has no room; the field ends with a zero, as it was made.
template <std::size_t N>
void put_text(std::array<char, N>& field, std::string_view text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), N - 1));
}

// Linux's number of the calling thread, asked for once.
inline std::uint32_t this_thread() noexcept {
  thread_local const auto id = static_cast<std::uint32_t>(gettid());
  return id;
}

}  // namespace paceline
