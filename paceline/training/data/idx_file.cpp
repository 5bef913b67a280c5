#include "paceline/training/data/idx_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/file_start.h"
#include "paceline/training/data/gzip_file.h"

namespace paceline::data {
namespace {

constexpr std::uint8_t kUint8Type = 0x08;
// More than any image set of this format has; a wrong header must not ask for terabytes.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 33;
constexpr std::size_t kPiece = std::size_t{16} << 20;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  // Fills `to` or fails.
  void read(std::span<std::uint8_t> to) {
    const std::size_t got = file_.read(std::as_writable_bytes(to));
    if (got == to.size()) return;
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}, {} bytes too early", path_, file_.offset(),
         to.size() - got);
  }

  std::int64_t read_size() {
    std::array<std::uint8_t, 4> b;
    read(b);
    return (std::int64_t{b[0]} << 24) | (b[1] << 16) | (b[2] << 8) | b[3];
  }

  // Tells what the file is instead, if its first bytes show that (engine/core/file_start.h).
  std::string_view mistaken(std::span<const std::uint8_t> first) {
    std::array<std::byte, 256> head{};
    std::ranges::copy(std::as_bytes(first), head.begin());
    const std::size_t more = file_.read(std::span(head).subspan(first.size()));
    return mistaken_file(std::span(head).first(first.size() + more));
  }

  // Reads on to gzip's own checksum, which stands behind the data.
  void require_end() {
    const std::int64_t end = file_.offset();
    std::byte extra{};
    if (file_.read({&extra, 1}) == 0) return;
    fail(ErrorCode::kCorrupt, "{}: goes on after byte {}, where its header says it ends", path_,
         end);
  }

 private:
  const std::string path_;
  GzipFile file_;
};

std::string find(const std::string& path) {
  if (std::filesystem::exists(path)) return path;
  if (std::filesystem::exists(path + ".gz")) return path + ".gz";
  const auto folder = std::filesystem::path(path).parent_path();
  check(std::filesystem::is_directory(folder), "the data folder {} does not exist",
        folder.string());
  fail(ErrorCode::kInvalid, "the data folder {} has neither {} nor {}.gz", folder.string(),
       std::filesystem::path(path).filename().string(),
       std::filesystem::path(path).filename().string());
}

}  // namespace

IdxFile read_idx(const std::string& path, std::size_t num_dims) {
  IdxFile file;
  file.path = find(path);
  Reader reader(file.path);
  std::array<std::uint8_t, 4> magic;
  reader.read(magic);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUint8Type || magic[3] != num_dims) {
    const std::string_view mistaken = reader.mistaken(magic);
    if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", file.path, mistaken);
    fail(ErrorCode::kCorrupt, "{}: byte 0: this is no IDX file of bytes in {} dimensions",
         file.path, num_dims);
  }
  std::int64_t count = 1;
  for (std::size_t dim = 0; dim < num_dims; ++dim) {
    file.sizes.push_back(reader.read_size());
    if (file.sizes.back() <= 0 || file.sizes.back() > kMaxElements / count) {
      fail(ErrorCode::kCorrupt, "{}: byte {}: dimension {} has the size {}", file.path, 4 + 4 * dim,
           dim, file.sizes.back());
    }
    count *= file.sizes.back();
  }
  const auto size = static_cast<std::size_t>(count);
  while (file.elements.size() < size) {
    // Grown as the data comes: what the header promises costs no memory yet.
    const std::size_t have = file.elements.size();
    file.elements.resize(std::min(size, have + kPiece));
    reader.read(std::span(file.elements).subspan(have));
  }
  reader.require_end();
  return file;
}

}  // namespace paceline::data
