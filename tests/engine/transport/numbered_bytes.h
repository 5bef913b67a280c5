#pragma once

// Bytes whose values show their positions.

#include <cstddef>
#include <vector>

namespace paceline {

inline std::vector<std::byte> numbered(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
  return bytes;
}

}  // namespace paceline
