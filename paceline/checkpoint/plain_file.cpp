#include "paceline/checkpoint/plain_file.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>

#include "paceline/checkpoint/digest.h"
#include "paceline/core/check.h"

namespace paceline {
namespace {

constexpr std::size_t kLargestCall = std::size_t{64} << 20;
constexpr std::uint64_t kPiece = 1 << 20;

// A descriptor closed through the interface, so that a failing close is seen.
class OpenFile {
 public:
  OpenFile(FileSystem& files, int fd) : files_(files), fd_(fd) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) files_.close(fd_);
  }
  int fd() const { return fd_; }
  int close() { return files_.close(std::exchange(fd_, -1)); }

 private:
  FileSystem& files_;
  int fd_;
};

ssize_t write_some(FileSystem& files, int fd, std::span<const std::byte> bytes) {
  ssize_t count;
  do {
    count = files.write(fd, bytes.first(std::min(bytes.size(), kLargestCall)));
  } while (count < 0 && errno == EINTR);
  return count;
}

int open_for_reading(FileSystem& files, const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = files.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd >= 0) return fd;
  if (errno == ENOENT) fail(ErrorCode::kCorrupt, "{}: the file is missing", path);
  if (errno == ELOOP) fail(ErrorCode::kCorrupt, "{}: a symbolic link, not a regular file", path);
  if (errno == ENXIO) fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
  throw system_error(fmt::format("{}: cannot open", path));
}

class FileToRead {
 public:
  FileToRead(FileSystem& files, const std::string& path, std::uint64_t max_bytes)
      : files_(files), path_(path), file_(files, open_for_reading(files, path)) {
    struct stat status {};
    if (::fstat(file_.fd(), &status) != 0) throw system_error(fmt::format("{}: cannot stat", path));
    if (!S_ISREG(status.st_mode)) fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
    size_ = static_cast<std::uint64_t>(status.st_size);
    if (size_ > max_bytes) {
      fail(ErrorCode::kCorrupt, "{}: {} bytes, more than the {} expected", path, size_, max_bytes);
    }
  }

  std::uint64_t size() const { return size_; }

  // The next bytes, which begin at `offset`.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const auto rest = bytes.subspan(done);
      const ssize_t count =
          files_.read(file_.fd(), rest.first(std::min(rest.size(), kLargestCall)));
      if (count < 0 && errno == EINTR) continue;
      const auto at = offset + done;
      if (count < 0) throw system_error(fmt::format("{}: cannot read at byte {}", path_, at));
      if (count == 0) fail(ErrorCode::kCorrupt, "{}: ends at byte {} of {}", path_, at, size_);
      done += static_cast<std::size_t>(count);
    }
  }

 private:
  FileSystem& files_;
  const std::string& path_;
  const OpenFile file_;
  std::uint64_t size_ = 0;
};

}  // namespace

std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes) {
  const FileToRead file(files, path, max_bytes);
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return bytes;
}

std::string digest_of_plain_file(FileSystem& files, const std::string& path,
                                 std::uint64_t max_bytes) {
  const FileToRead file(files, path, max_bytes);
  std::vector<std::byte> piece(kPiece);
  Digest digest;
  for (std::uint64_t done = 0; done < file.size(); done += kPiece) {
    const auto part = std::span(piece).first(std::min(file.size() - done, kPiece));
    file.read(done, part);
    digest.update(part);
  }
  return digest.hex();
}

void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts) {
  std::uint64_t size = 0;
  for (const auto part : parts) size += part.size();
  std::uint64_t written = 0;
  const auto give_up = [&](const char* what) {
    const int error_number = errno;
    refuse(fmt::format("{}: cannot {} (the file needs {} bytes, {} were written)", path, what, size,
                       written),
           error_number);
  };
  const int fd = files.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) give_up("create");
  OpenFile file(files, fd);
  for (auto part : parts) {
    while (!part.empty()) {
      const ssize_t count = write_some(files, fd, part);
      if (count == 0) errno = EIO;  // no progress and no reason: never try forever
      if (count <= 0) give_up("write");
      written += static_cast<std::uint64_t>(count);
      part = part.subspan(static_cast<std::size_t>(count));
    }
  }
  if (files.fsync(fd) != 0) give_up("sync");
  if (file.close() != 0) give_up("close");
}

void sync_directory(FileSystem& files, const std::string& path) {
  const int fd = files.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) refuse(fmt::format("{}: cannot open the directory", path));
  OpenFile directory(files, fd);
  if (files.fsync(fd) != 0) refuse(fmt::format("{}: cannot sync", path));
}

}  // namespace paceline
