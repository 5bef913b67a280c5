#pragma once

// One fuzz target a program: a parser of what strangers may send or write, fed with any bytes. It
// must refuse them with an Error, or take them; nothing else may leave it, and no memory that is
// not its own may be touched (the sanitizers see to that).
//
// With clang, libFuzzer makes the bytes (scripts/fuzz). In the ordinary build replay.cpp takes the
// files of corpus/ instead, as tests.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "paceline/engine/core/error.h"

namespace paceline::fuzz {

// Each target defines it. Error is expected; any other end is a finding.
void take(std::span<const std::byte> bytes);

// Ends the program: what was taken is not what must hold.
void require(bool holds, const char* what);

// The first byte, which many targets use to choose; the rest stays in `bytes`. 0 when there is
// none.
inline std::uint8_t take_byte(std::span<const std::byte>& bytes) {
  if (bytes.empty()) return 0;
  const auto first = static_cast<std::uint8_t>(bytes[0]);
  bytes = bytes.subspan(1);
  return first;
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace paceline::fuzz
