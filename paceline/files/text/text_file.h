#pragma once

#include <cstdint>
#include <string>

namespace paceline::text {

// The text of a regular file of a vocabulary, without a byte order mark of UTF-8. Error(kCorrupt)
// with its name when it is missing, no regular file, a web page or a pointer of Git LFS in its
// place, marked as another encoding, cannot be read or has more than `max_bytes`.
std::string read_text_file(const std::string& path, std::uint64_t max_bytes = 1ULL << 32);

}  // namespace paceline::text
