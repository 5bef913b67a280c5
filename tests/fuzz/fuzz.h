#pragma once

// Each program has one fuzz target: a parser of data that strangers may send or write, fed with
// arbitrary bytes. It must refuse them with an Error, or accept them. No other exception may leave
// it, and it must not touch memory that is not its own (the sanitizers check that).
//
// With clang, libFuzzer makes the bytes (scripts/fuzz). In the ordinary build replay.cpp uses the
// files of corpus/ instead, as tests.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "paceline/engine/core/error.h"

namespace paceline::fuzz {

// Each target defines it. An Error is expected; any other failure is a finding.
void take(std::span<const std::byte> bytes);

// Ends the program if a condition does not hold that must hold for accepted data.
void require(bool holds, const char* what);

// Removes and returns the first byte, which many targets use for a choice; 0 if `bytes` is empty.
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
