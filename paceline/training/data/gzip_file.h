#pragma once

// Reads a file from its beginning to its end, unpacked where it is gzip. Members that follow one
// another are one text; zeros between and behind them are padding, as for Python's gzip. Anything
// else behind a member is an error.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"

namespace paceline::data {

class GzipFile {
 public:
  // Error(kSystem) when it cannot be opened.
  explicit GzipFile(const std::string& path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Fills `into`; fewer bytes only at the end, where gzip's own checksum has been compared.
  // Error(kCorrupt) for gzip data that is cut, damaged or followed by something else,
  // Error(kSystem); both name the byte.
  std::size_t read(std::span<std::byte> into);
  // How many bytes were read, unpacked.
  std::int64_t offset() const { return offset_; }

 private:
  struct Inflation;

  bool refill();
  std::size_t copy(std::span<std::byte> into);
  std::size_t unpack(std::span<std::byte> into);
  bool begins_member() const;
  void end_member();

  const std::string path_;
  const Fd file_;
  std::vector<std::byte> input_;
  std::span<const std::byte> unread_;     // of the input
  std::unique_ptr<Inflation> inflation_;  // null for a plain file
  bool has_begun_ = false, is_over_ = false;
  std::int64_t offset_ = 0;
  std::int64_t file_bytes_ = 0;  // that were read of the file
};

}  // namespace paceline::data
