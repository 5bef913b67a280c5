#pragma once

// The files that hold the bytes of a checkpoint's tensors: writing one file, and reading boxes from
// several.
//
// A file holds the bytes of its boxes, one after another. The CRC-32C of each chunk of these bytes
// follows, so that a reader can check the chunks that it reads without reading any others. A
// trailer at the end names the checkpoint that the file belongs to. checkpoint/FORMAT.md
// defines the layout.
//
// Cost: the checksums of N bytes take N / 1024 bytes.
//
// Thread safety: one thread at a time for an object.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/box.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

inline constexpr std::size_t kChunkBytes = 4 << 10;

// Identifies a file. The trailer contains these fields, but only the first 24 bytes of `run`.
struct BoxFileId {
  std::int64_t step = 0;
  std::string run;
  std::uint32_t number = 0;  // index in Manifest::files

  bool operator==(const BoxFileId&) const = default;
};

// Returns, for instance, "boxes-00000-of-00002.bin".
std::string box_file_name(std::uint32_t number, std::size_t num_files);

// Writes one file, box by box. Computes the checksums of a few MiB at a time, while these bytes are
// in the caches. Error(kSystem), or DiskFull, names the file, the bytes that the file needs and how
// many were written. The caller must remove the unfinished file.
class BoxFileWriter {
 public:
  // `data_bytes`: the sum of the sizes of all boxes. Requires: nothing exists at `path`.
  BoxFileWriter(FileSystem& files, const std::string& path, const BoxFileId& id,
                std::uint64_t data_bytes);

  void add(std::span<const std::byte> box);
  // The file is on the disk when this returns. Requires: all bytes have been added.
  ManifestFile finish();

 private:
  void add_checksums(std::span<const std::byte> rest);

  const std::string name_;
  const BoxFileId id_;
  const std::uint64_t data_bytes_;
  const std::uint64_t size_;  // of the file
  PlainFileWriter file_;
  std::vector<std::uint32_t> sums_;
  std::size_t in_last_sum_ = 0;  // bytes in the last chunk so far; 0: it is whole
};

// One file, open for reading parts of it.
class BoxFile {
 public:
  // Reads and checks the checksums and the trailer. `path` is the file that the manifest lists as
  // `entry`. Error(kCorrupt) when the file is missing, is not a regular file, has another size,
  // belongs to another checkpoint or is damaged; kSystem when the file cannot be read.
  BoxFile(FileSystem& files, const std::string& path, const ManifestFile& entry,
          const BoxFileId& id);
  ~BoxFile();
  BoxFile(const BoxFile&) = delete;
  BoxFile& operator=(const BoxFile&) = delete;

  // The sum of the sizes of all boxes.
  std::uint64_t data_bytes() const { return data_bytes_; }

  // Reads and checks whole chunks from chunk `first` on. Error(kCorrupt) names the first chunk
  // whose checksum differs. Requires: the chunks are in the file; only the file's last chunk may be
  // short.
  void read_chunks(std::uint64_t first, std::span<std::byte> bytes);

  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void read_at(std::uint64_t position, std::span<std::byte> bytes);

  FileSystem& files_;
  const std::string path_;
  int fd_ = -1;
  std::uint64_t data_bytes_ = 0;
  std::vector<std::uint32_t> sums_;
  std::uint64_t bytes_read_ = 0;
};

// A box that a rank wants to read.
struct WantedBox {
  std::string name;  // of the tensor
  Box box;
  std::byte* to = nullptr;  // gets the box's elements in row-major order
};

// Reads boxes of a checkpoint's tensors. These boxes may differ from the boxes in the files: the
// reader assembles each wanted box from the stored boxes that overlap it. It reads only the chunks
// that hold wanted elements, each chunk once per call, and checks a chunk before using any of it.
// Several readers may read the same files.
class BoxReader {
 public:
  // Requires: `manifest` is that of `folder`, and outlives the reader.
  BoxReader(FileSystem& files, std::string folder, const Manifest& manifest);

  // Fills the boxes. Error(kCorrupt) when a file is missing, belongs to another checkpoint or is
  // damaged where it is read; any box may then be partly filled. Error(kInvalid) for a tensor or a
  // box that the checkpoint does not have.
  void read(std::span<const WantedBox> wanted);
  // Reads and checks every byte of every file. Throws the Error(kCorrupt) of read().
  void verify();

  // The bytes read from the disk so far, without those of the manifest.
  std::uint64_t bytes_read() const;

 private:
  // Bytes that are contiguous both in a file and in the memory into which they are read.
  struct Run {
    std::uint64_t position = 0;
    std::uint64_t bytes = 0;
    std::byte* to = nullptr;
  };
  using RunsByFile = std::map<std::uint32_t, std::vector<Run>>;

  BoxFile& file(std::uint32_t number);
  static void add_runs(RunsByFile& runs, const StoredTensor& tensor, const WantedBox& wanted);
  void read_runs(BoxFile& from, std::vector<Run>& runs);

  FileSystem& files_;
  const std::string folder_;
  const Manifest& manifest_;
  std::map<std::uint32_t, std::unique_ptr<BoxFile>> open_;
};

}  // namespace paceline
