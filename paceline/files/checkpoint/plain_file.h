#pragma once

// Whole regular files: read into memory, or written and on the disk when the call returns. Symbolic
// links, FIFOs and devices are refused, so a planted file can neither redirect a read
// nor block it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

// Error(kCorrupt) when the path is missing, is not a regular file, is larger than `max_bytes`, or
// changes its size while it is read; Error(kSystem) when the operating system refuses.
std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes);

// A descriptor that reads a regular file; the caller closes it. Errors as above.
int open_plain_file(FileSystem& files, const std::string& path);

// Fills `bytes` from `position` on. Error(kCorrupt) when the file ends earlier.
void read_plain_file_at(FileSystem& files, int fd, const std::string& path, std::uint64_t position,
                        std::span<std::byte> bytes);

// A file that is written from its beginning to its end. Long pieces of memory that begins at a page
// go to the disk past the kernel's cache, where the file system can do that: without a copy, and
// without pushing out what is read from there. Errors are Error(kSystem), or DiskFull;
// they name the file, the bytes that it needs and how many were written, which stay for the caller
// to remove. Requires: nothing exists at `path`.
class PlainFileWriter {
 public:
  PlainFileWriter(FileSystem& files, const std::string& path, std::uint64_t size);
  ~PlainFileWriter();
  PlainFileWriter(const PlainFileWriter&) = delete;
  PlainFileWriter& operator=(const PlainFileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  // All of it is on the disk when this returns. Without it the file is closed as it is.
  void finish();

 private:
  [[noreturn]] void give_up(const char* what) const;
  std::size_t prepare(std::span<const std::byte> bytes);

  FileSystem& files_;
  const std::string path_;
  const std::uint64_t size_;
  std::uint64_t written_ = 0;
  bool can_pass_ = true;  // the cache
  bool passes_ = false;   // now
  int fd_ = -1;
};

// Creates `path`, writes the parts one after another and syncs. Error(kSystem) names the file, the
// bytes it needs and how many were written; what was written stays for the caller to remove.
// Requires: nothing exists at `path`.
void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts);

// Makes the entries of a directory durable.
void sync_directory(FileSystem& files, const std::string& path);

}  // namespace paceline
