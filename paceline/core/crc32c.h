#pragma once

// CRC-32C (Castagnoli, RFC 3720): the checksum of TFRecord files. One byte a table look-up: for
// records, not for data.

#include <cstddef>
#include <cstdint>
#include <span>

namespace paceline {

std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace paceline
