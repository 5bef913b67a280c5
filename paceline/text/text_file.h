#pragma once

#include <cstdint>
#include <string>

namespace paceline::text {

// The bytes of a regular file. Error(kCorrupt) with its name when it is missing, no regular file,
// cannot be read or has more than `max_bytes`.
std::string read_text_file(const std::string& path, std::uint64_t max_bytes = 1ULL << 32);

}  // namespace paceline::text
