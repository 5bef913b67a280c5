// Files of data sets, which may come from anywhere: IDX, plain and gzip, and CIFAR-10.

#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/training/data/dataset_files.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_) throw system_error("memfd_create");
    const auto size = static_cast<ssize_t>(bytes.size());
    require(write(fd_.get(), bytes.data(), bytes.size()) == size, "the input is written");
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_.get()); }

 private:
  const Fd fd_;
};

void read_idx_file(const std::string& path, std::size_t num_dims) {
  const data::IdxFile file = data::read_idx(path, num_dims);
  std::int64_t count = 1;
  for (const std::int64_t size : file.sizes) count *= size;
  require(file.sizes.size() == num_dims && std::ssize(file.elements) == count,
          "the elements are those of the header");
}

// Each byte of the input fills one record: a record is long, and only its label can be invalid.
void read_cifar_file(std::span<const std::byte> bytes) {
  std::vector<std::byte> records;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), 64)))
    records.resize(records.size() + data::kCifarImage + 1, byte);
  if (bytes.size() > 64) records.resize(records.size() + bytes.size());
  const MemoryFile file(records);
  const std::int64_t count = data::count_cifar_records(file.path());
  std::vector<std::int64_t> labels(static_cast<std::size_t>(count));
  std::vector<std::uint8_t> images(labels.size() * data::kCifarImage);
  data::read_cifar_records(file.path(), 10, images, labels);
  for (const std::int64_t label : labels) require(label >= 0 && label < 10, "labels are classes");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  const int way = take_byte(bytes) % 4;
  if (way == 0) return read_cifar_file(bytes);
  read_idx_file(MemoryFile(bytes).path(), static_cast<std::size_t>(way));
}

}  // namespace paceline::fuzz
