#pragma once

// Reads data files in these formats: gzip, IDX (MNIST) and CIFAR-10's binary version.
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

// Reads a file from its beginning to its end, unpacked if it is gzip. Consecutive gzip members are
// unpacked one after another; zeros between and after them are padding, as in Python's gzip. Any
// other bytes after a member are an error.
class GzipFile {
 public:
  // Error(kSystem) when the file cannot be opened.
  explicit GzipFile(const std::string& path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Fills `into` and returns the number of bytes, which is smaller than `into` only at the end of
  // the file, after gzip's own checksum has been compared. Error(kCorrupt) for gzip data that is
  // truncated, damaged or followed by other bytes; Error(kSystem) when the file cannot be read.
  // Both name the byte offset.
  std::size_t read(std::span<std::byte> into);
  // The number of unpacked bytes read so far.
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
  std::span<const std::byte> unread_;     // the part of input_ that has not been used yet
  std::unique_ptr<Inflation> inflation_;  // null for a plain file
  bool has_begun_ = false, is_over_ = false;
  std::int64_t offset_ = 0;
  std::int64_t file_bytes_ = 0;  // bytes of the file that have been read
};

// The whole contents of a file in the IDX format: a big-endian magic number (0, 0, type, number of
// dimensions), the dimensions, the elements.
struct IdxFile {
  std::string path;  // the file that was found, with or without .gz
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// Reads `path`, or `path`.gz if `path` does not exist. The elements must be of type uint8, in
// `num_dims` dimensions. Errors, here and below: those of load_mnist() (image_dataset.h).
IdxFile read_idx(const std::string& path, std::size_t num_dims);

// CIFAR-10's binary version: records of a label and 3 planes of 32x32 bytes.
inline constexpr std::int64_t kCifarImage = 3 * 32 * 32;

// The number of records in the file.
std::int64_t count_cifar_records(const std::string& path);

// Reads the first labels.size() records: kCifarImage bytes of each go to `images`. Error(kCorrupt)
// also for a label that is not below num_classes.
void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels);

}  // namespace paceline::data
