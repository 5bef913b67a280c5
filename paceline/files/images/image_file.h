#pragma once

// Reads an image's file whole. Only regular files are read, and none above the limit: its size is
// looked at before memory is taken.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::images {

// Error(kSystem) with the path when the system refuses, kInvalid for what is no regular file or
// above `max_bytes`, kCorrupt for a file whose size changes meanwhile.
std::vector<std::byte> read_image_file(const std::string& path, std::int64_t max_bytes);

// A name for a message: what is not UTF-8, or is not to be printed, as \xNN.
std::string printable(std::string_view name);

}  // namespace paceline::images
