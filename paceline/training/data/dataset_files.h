#pragma once

// The formats of data files: gzip, IDX (MNIST) and CIFAR-10's binary version.
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

// Reads a file from its beginning to its end, unpacked if it is gzip. Members that follow one
// another are one text; zeros between and behind them are padding, as for Python's gzip. Anything
// else behind a member is an error.
class GzipFile {
 public:
  // Error(kSystem) when it cannot be opened.
  explicit GzipFile(const std::string& path);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Fills `into` and returns the number of bytes, which is smaller only at the end, after gzip's
  // own checksum has been compared. Error(kCorrupt) for gzip data that is truncated, damaged or
  // followed by something else, or Error(kSystem); both name the byte.
  std::size_t read(std::span<std::byte> into);
  // How many unpacked bytes were read.
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
  std::span<const std::byte> unread_;     // the part of input_ that is not used yet
  std::unique_ptr<Inflation> inflation_;  // null for a plain file
  bool has_begun_ = false, is_over_ = false;
  std::int64_t offset_ = 0;
  std::int64_t file_bytes_ = 0;  // bytes of the file that were read
};

// The whole contents of a file in the IDX format: a big-endian magic number (0, 0, type, number of
// dimensions), the dimensions, the elements.
struct IdxFile {
  std::string path;  // the file that was found, with or without .gz
  std::vector<std::int64_t> sizes;
  std::vector<std::uint8_t> elements;
};

// Reads `path`, or `path`.gz if there is no such file. The elements must be of type uint8, in
// `num_dims` dimensions. Errors, also below: those of load_mnist() (image_dataset.h).
IdxFile read_idx(const std::string& path, std::size_t num_dims);

// CIFAR-10's binary version: records of a label and 3 planes of 32x32 bytes.
inline constexpr std::int64_t kCifarImage = 3 * 32 * 32;

// How many records the file has.
std::int64_t count_cifar_records(const std::string& path);

// Reads the first labels.size() records: `images` gets kCifarImage bytes of each. Error(kCorrupt)
// also for a label that is not below num_classes.
void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels);

}  // namespace paceline::data
