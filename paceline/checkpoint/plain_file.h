#pragma once

// Whole regular files: read into memory, or written and on the disk when the call returns. Symbolic
// links, FIFOs and devices are refused, so a planted file can neither redirect a read
// nor block it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/checkpoint/file_system.h"

namespace paceline {

// Error(kCorrupt) when the path is missing, is not a regular file, is larger than `max_bytes`, or
// changes its size while it is read; Error(kSystem) when the operating system refuses.
std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes);

// XXH3-128 of the whole file, which is read piece by piece. Errors as above.
std::string digest_of_plain_file(FileSystem& files, const std::string& path,
                                 std::uint64_t max_bytes);

// Creates `path`, writes the parts one after another and syncs. Error(kSystem) names the file, the
// bytes it needs and how many were written; what was written stays for the caller to remove.
// Requires: nothing exists at `path`.
void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts);

// Makes the entries of a directory durable.
void sync_directory(FileSystem& files, const std::string& path);

}  // namespace paceline
