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

#include "paceline/engine/core/system/fd.h"

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

// The IDX format: a big-endian magic number (0, 0, type, number of dimensions), the dimensions, the
// elements. Read whole, also from gzip.

struct IdxFile {
  std::string path;  // the file that was found, with or without .gz
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// Reads `path`, or `path`.gz when there is no such file. Requires elements of type uint8 in
// `num_dims` dimensions. Errors as in image_dataset.h.
IdxFile read_idx(const std::string& path, std::size_t num_dims);

// CIFAR-10's binary version: records of a label and 3 planes of 32x32 bytes.

inline constexpr std::int64_t kCifarImage = 3 * 32 * 32;

// How many records the file has. Errors as in image_dataset.h.
std::int64_t count_cifar_records(const std::string& path);

// Reads the first labels.size() records: `images` gets kCifarImage bytes of each. Errors as in
// image_dataset.h, kCorrupt also for a label that is not below num_classes.
void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels);

}  // namespace paceline::data
