#pragma once

// The files of a checkpoint that have its bytes: writing one, and reading boxes out of several.
//
// A file has the bytes of boxes, one after the other; then the CRC-32C of each chunk of them, so
// that a reader checks what it reads and needs to read nothing else; then a trailer that names the
// checkpoint to which the file belongs. docs/checkpoint_format.md has the bytes.
//
// Cost: a file of N bytes has N / 1024 bytes more.
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

// Which file it is. All of it is in its trailer.
struct BoxFileId {
  std::int64_t step = 0;
  std::string run;
  std::uint32_t number = 0;  // among the checkpoint's files

  bool operator==(const BoxFileId&) const = default;
};

// "boxes-00000-of-00002.bin"
std::string box_file_name(std::uint32_t number, std::size_t num_files);

// Writes one file, box by box. Each piece is summed up while it is in the caches. Error(kSystem),
// or DiskFull, names the file, the bytes that it needs and how many were written. These bytes stay
// for the caller to remove.
class BoxFileWriter {
 public:
  // `data_bytes`: of all boxes. Requires: nothing exists at `path`.
  BoxFileWriter(FileSystem& files, const std::string& path, const BoxFileId& id,
                std::uint64_t data_bytes);

  void add(std::span<const std::byte> box);
  // The file is on the disk when this returns. Requires: all bytes have been added.
  ManifestFile finish();

 private:
  void sum_up(std::span<const std::byte> rest);

  const std::string name_;
  const BoxFileId id_;
  const std::uint64_t data_bytes_;
  const std::uint64_t size_;  // of the file
  PlainFileWriter file_;
  std::vector<std::uint32_t> sums_;
  std::size_t in_last_sum_ = 0;  // bytes; 0: the last chunk is whole
};

// One file, to read parts of it.
class BoxFile {
 public:
  // Reads and checks sums and trailer. `path` is the file that the manifest lists as `entry`.
  // Error(kCorrupt) with what is expected and found when it is missing, no regular file, of another
  // size, of another checkpoint or damaged.
  BoxFile(FileSystem& files, const std::string& path, const ManifestFile& entry,
          const BoxFileId& id);
  ~BoxFile();
  BoxFile(const BoxFile&) = delete;
  BoxFile& operator=(const BoxFile&) = delete;

  // The bytes of all boxes.
  std::uint64_t data_bytes() const { return data_bytes_; }

  // Checks whole chunks: `first` is the number of the first one. Error(kCorrupt) with the first
  // chunk that does not have its sum. Requires: they are in the file; the last one may be short.
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
  std::byte* to = nullptr;  // the box's elements, in row-major order
};

// Reads boxes of a checkpoint's tensors, whatever boxes its files have: each wanted box is put
// together from the stored ones that it has elements in common with. Only the chunks with these
// elements are read, each once a call, and each is checked before any of it is used. Several
// readers may read the same files.
class BoxReader {
 public:
  // `manifest` is that in `folder` and outlives this.
  BoxReader(FileSystem& files, std::string folder, const Manifest& manifest);

  // Error(kCorrupt), with some of the boxes filled, when a file is missing, of another checkpoint
  // or damaged where it is read; Error(kInvalid) for a tensor or a box that the checkpoint
  // does not have.
  void read(std::span<const WantedBox> wanted);
  // Reads every byte of every file. Errors as above.
  void verify();

  // From the disk, so far; the manifest's not counted.
  std::uint64_t bytes_read() const;

 private:
  // Bytes that follow each other in a file and in the memory that wants them.
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
