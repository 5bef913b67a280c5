#include "paceline/files/checkpoint/safetensors_file.h"

#include <algorithm>
#include <vector>

#include <sys/stat.h>

#include "paceline/engine/core/no_links.h"
#include "paceline/files/checkpoint/plain_file.h"

namespace paceline {
namespace {

// Enough to recognise what stands in the place of a safetensors file.
constexpr std::uint64_t kFirstBytes = 256;

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path, ForeignTypes foreign)
    : path_(path), file_(open_plain_file(FileSystem::real(), without_links(path))) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error(path + ": cannot stat");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::vector<std::byte> head(std::min(size, kFirstBytes));
  read_plain_file_at(FileSystem::real(), file_.get(), path_, 0, head);
  head.resize(safetensors_head_bytes(head, size, path_));
  read_plain_file_at(FileSystem::real(), file_.get(), path_, 0, head);
  header_ = parse_safetensors_header(head, size, path_, foreign);
  std::uint64_t position = header_.data;
  for (const TensorEntry& tensor : header_.tensors) {
    positions_[tensor.name] = position;
    position += tensor.bytes;
  }
}

void SafetensorsFile::read(const std::string& name, std::span<std::byte> bytes) const {
  read_plain_file_at(FileSystem::real(), file_.get(), path_, positions_.at(name), bytes);
}

}  // namespace paceline
