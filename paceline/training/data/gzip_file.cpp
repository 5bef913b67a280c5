#include "paceline/training/data/gzip_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fcntl.h>
#include <zlib.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"

namespace paceline::data {
namespace {

constexpr std::size_t kInputBytes = 64 << 10;
constexpr std::array kMagic = {std::byte{0x1f}, std::byte{0x8b}};
constexpr int kGzipOnly = 16 + MAX_WBITS;

}  // namespace

struct GzipFile::Inflation {
  Inflation() { check(inflateInit2(&stream, kGzipOnly) == Z_OK, "zlib has no memory"); }
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

// Keeps what is unread. False when nothing is, at the end of the file.
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
         "padding; unpack the file by 'gzip -dc', which leaves the rest out",
         path_, file_bytes_ - std::ssize(unread_));
  }
  check(inflateReset(&inflation_->stream) == Z_OK, "{}: zlib cannot go on", path_);
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

}  // namespace paceline::data
