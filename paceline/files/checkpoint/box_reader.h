#pragma once

// Reads boxes of a checkpoint's tensors, whatever boxes its files have: each wanted box is put
// together from the stored ones that it has elements in common with. Only the chunks with these
// elements are read, each once a call, and each is checked before any of it is used.
//
// Thread safety: none. Several readers may read the same files.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/box.h"
#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

struct WantedBox {
  std::string name;  // of the tensor
  Box box;
  std::byte* to = nullptr;  // the box's elements, in row-major order
};

class BoxReader {
 public:
  // `manifest` is that in `folder` and outlives this.
  BoxReader(FileSystem& files, std::string folder, const Manifest& manifest);

  // Opens every file and checks what is not boxes. Errors as below.
  void open_all();
  // Error(kCorrupt), with some of the boxes filled, when a file is missing, of another checkpoint
  // or damaged where it is read; Error(kInvalid) for a tensor or a box that the checkpoint has not.
  void read(std::span<const WantedBox> wanted);
  // Reads every byte. Errors as above.
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
