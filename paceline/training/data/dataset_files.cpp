#include "paceline/training/data/dataset_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <zlib.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline::data {

namespace {

constexpr std::size_t kInputBytes = 64 << 10;
constexpr std::array kMagic = {std::byte{0x1f}, std::byte{0x8b}};
constexpr int kGzipOnly = 16 + MAX_WBITS;

}  // namespace

struct GzipFile::Inflation {
  Inflation() { check(inflateInit2(&stream, kGzipOnly) == Z_OK, "not enough memory for zlib"); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;
  ~Inflation() { inflateEnd(&stream); }
  z_stream stream{};
};

GzipFile::GzipFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), input_(kInputBytes) {
  if (!file_) throw system_error("opening " + path_);
}

GzipFile::~GzipFile() = default;

std::size_t GzipFile::read(std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size() && !is_over_) {
    if (unread_.empty() && !refill()) {
      if (!inflation_) break;
      fail(ErrorCode::kCorrupt, "{}: ends at byte {}: its gzip data is cut", path_, offset_);
    }
    const auto rest = into.subspan(done);
    const std::size_t got = inflation_ ? unpack(rest) : copy(rest);
    done += got;
    offset_ += static_cast<std::int64_t>(got);
  }
  return done;
}

// Reads more bytes and appends them to the unread ones. Returns false at the end of the file, when
// no bytes are left.
bool GzipFile::refill() {
  std::ranges::copy(unread_, input_.begin());
  const std::size_t kept = unread_.size();
  const ssize_t got = read_whole(file_.get(), std::span(input_).subspan(kept));
  if (got < 0) throw system_error(fmt::format("{}: reading at byte {}", path_, offset_));
  file_bytes_ += got;
  unread_ = std::span<const std::byte>(input_).first(kept + static_cast<std::size_t>(got));
  if (!std::exchange(has_begun_, true) && begins_member()) {
    inflation_ = std::make_unique<Inflation>();
  }
  return !unread_.empty();
}

void GzipFile::end_member() {
  do {
    const auto padding =
        std::ranges::find_if(unread_, [](std::byte b) { return b != std::byte{0}; });
    unread_ = unread_.subspan(static_cast<std::size_t>(padding - unread_.begin()));
  } while (unread_.empty() && refill());
  if (unread_.empty()) {
    is_over_ = true;
    return;
  }
  if (unread_.size() < kMagic.size()) refill();
  if (!begins_member()) {
    fail(ErrorCode::kCorrupt,
         "{}: gzip data ends at byte {} of the file, and what follows is neither gzip data nor "
         "padding; unpack the file with 'gzip -dc', which ignores the rest",
         path_, file_bytes_ - std::ssize(unread_));
  }
  check(inflateReset(&inflation_->stream) == Z_OK, "{}: zlib cannot continue", path_);
}

bool GzipFile::begins_member() const {
  return unread_.size() >= kMagic.size() &&
         std::ranges::equal(unread_.first(kMagic.size()), kMagic);
}

std::size_t GzipFile::copy(std::span<std::byte> into) {
  const std::size_t count = std::min(into.size(), unread_.size());
  std::ranges::copy(unread_.first(count), into.begin());
  unread_ = unread_.subspan(count);
  return count;
}

std::size_t GzipFile::unpack(std::span<std::byte> into) {
  into = into.first(std::min<std::size_t>(into.size(), 1U << 30));
  z_stream& stream = inflation_->stream;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(unread_.data()));
  stream.avail_in = static_cast<uInt>(unread_.size());
  stream.next_out = reinterpret_cast<Bytef*>(into.data());
  stream.avail_out = static_cast<uInt>(into.size());
  const int status = inflate(&stream, Z_NO_FLUSH);
  unread_ = unread_.last(stream.avail_in);
  if (status == Z_STREAM_END) {
    end_member();
  } else if (status != Z_OK && status != Z_BUF_ERROR) {
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}: its gzip data is damaged ({})", path_, offset_,
         stream.msg != nullptr ? stream.msg : zError(status));
  }
  return into.size() - stream.avail_out;
}

namespace {

constexpr std::uint8_t kUint8Type = 0x08;
// More elements than any image set in this format has: a damaged header must not cause a huge
// allocation.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 33;
constexpr std::size_t kPiece = std::size_t{16} << 20;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(path) {}

  // Fills `to`, or throws.
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

  // Describes the file if its first bytes show that it is of another, known kind; otherwise empty
  // (mistaken_file(), engine/core/system/safe_files.h).
  std::string_view mistaken(std::span<const std::uint8_t> first) {
    std::array<std::byte, 256> head{};
    std::ranges::copy(std::as_bytes(first), head.begin());
    const std::size_t more = file_.read(std::span(head).subspan(first.size()));
    return mistaken_file(std::span(head).first(first.size() + more));
  }

  // Requires that the file ends here, and reads gzip's checksum, which follows the data.
  void require_end() {
    const std::int64_t end = file_.offset();
    std::byte extra{};
    if (file_.read({&extra, 1}) == 0) return;
    fail(ErrorCode::kCorrupt,
         "{}: continues after byte {}, where it should end according to its header", path_, end);
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
    fail(ErrorCode::kCorrupt, "{}: byte 0: this is not an IDX file of bytes in {} dimensions",
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
    // Memory grows with the data that has been read, not with the size in the header.
    const std::size_t have = file.elements.size();
    file.elements.resize(std::min(size, have + kPiece));
    reader.read(std::span(file.elements).subspan(have));
  }
  reader.require_end();
  return file;
}

namespace {

constexpr std::int64_t kRecord = 1 + kCifarImage;
constexpr std::int64_t kRecordsAtOnce = 256;  // few enough to stay in the cache

}  // namespace

std::int64_t count_cifar_records(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  check(std::filesystem::is_directory(folder), "the data folder {} does not exist", folder);
  check(std::filesystem::is_regular_file(path),
        "the data folder {} has no {}; CIFAR-10's binary version is needed", folder,
        std::filesystem::path(path).filename().string());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  check(size > 0, "{} is empty", path);
  if (size % kRecord != 0) {
    std::array<char, 256> head;
    std::ifstream file(path, std::ios::binary);
    file.read(head.data(), head.size());
    const std::string_view mistaken = mistaken_file(
        std::as_bytes(std::span(head).first(static_cast<std::size_t>(file.gcount()))));
    if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", path, mistaken);
    fail(ErrorCode::kCorrupt, "{}: ends at byte {}, in the middle of a record of {} bytes", path,
         size, kRecord);
  }
  return size / kRecord;
}

void read_cifar_records(const std::string& path, std::size_t num_classes,
                        std::span<std::uint8_t> images, std::span<std::int64_t> labels) {
  std::vector<char> buffer(static_cast<std::size_t>(kRecordsAtOnce * kRecord));
  std::ifstream file(path, std::ios::binary);
  const std::int64_t count = std::ssize(labels);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % kRecordsAtOnce == 0) {
      file.read(buffer.data(), std::min(kRecordsAtOnce, count - i) * kRecord);
      check(file.good(), "{} cannot be read", path);
    }
    const char* record = buffer.data() + i % kRecordsAtOnce * kRecord;
    const auto label = static_cast<unsigned char>(record[0]);
    if (label >= num_classes) {
      fail(ErrorCode::kCorrupt, "{}: byte {}: the label {} is not in [0, {})", path, i * kRecord,
           label, num_classes);
    }
    labels[static_cast<std::size_t>(i)] = label;
    std::memcpy(images.data() + i * kCifarImage, record + 1, kCifarImage);
  }
}

}  // namespace paceline::data
