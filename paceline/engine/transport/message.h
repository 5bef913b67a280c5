#pragma once

// A message on a data or point-to-point channel: a fixed header, then `payload_bytes` bytes.
// docs/wire_formats.md has the layout.

#include <array>
#include <cstddef>
#include <cstdint>

#include <sys/types.h>

#include "paceline/engine/transport/wire.h"

namespace paceline {

// What the two ends must agree on, as opaque words: the layers above fill and compare them.
using FingerprintWords = std::array<std::uint64_t, 4>;

struct MessageHeader {
  static constexpr std::uint32_t kMagic = 0x4d4c5002;  // "\x02PLM": version 2
  // The payload lies where the 8 bytes behind the header say (message_streams.h).
  static constexpr std::uint32_t kOfferMagic = 0x444c5002;  // "\x02PLD"
  // On a data channel: "I am in this operation", said to all by a rank that has waited for a while.
  static constexpr std::uint32_t kPresenceTag = 1;

  std::uint32_t magic = kMagic;
  std::uint32_t tag = 0;  // of point-to-point; on a data channel 0 or kPresenceTag
  std::uint64_t payload_bytes = 0;
  FingerprintWords fingerprint{};

  bool is_offer() const { return magic == kOfferMagic; }
};
static_assert(sizeof(MessageHeader) == 48);

// Whether an errno means that the channel can take or give nothing now.
bool would_block(int error);

}  // namespace paceline
