#include "paceline/checkpoint/plain_file.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

constexpr std::size_t kLargestCall = std::size_t{64} << 20;

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

}  // namespace

std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes) {
  OpenFile file(files, open_for_reading(files, path));
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw system_error(fmt::format("{}: cannot stat", path));
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes, more than the {} expected", path, size, max_bytes);
  }
  std::vector<std::byte> bytes(size);
  std::size_t done = 0;
  while (done < size) {
    const auto rest = std::span(bytes).subspan(done);
    const ssize_t count = files.read(file.fd(), rest.first(std::min(rest.size(), kLargestCall)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error(fmt::format("{}: cannot read at byte {}", path, done));
    if (count == 0) fail(ErrorCode::kCorrupt, "{}: ends at byte {} of {}", path, done, size);
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts) {
  std::uint64_t size = 0;
  for (const auto part : parts) size += part.size();
  std::uint64_t written = 0;
  const auto refuse = [&](const char* what) {
    const int error_number = errno;
    throw system_error(fmt::format("{}: cannot {} (the file needs {} bytes, {} were written)", path,
                                   what, size, written),
                       error_number);
  };
  const int fd = files.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) refuse("create");
  OpenFile file(files, fd);
  for (auto part : parts) {
    while (!part.empty()) {
      const ssize_t count = write_some(files, fd, part);
      if (count == 0) errno = EIO;  // no progress and no reason: never try for ever
      if (count <= 0) refuse("write");
      written += static_cast<std::uint64_t>(count);
      part = part.subspan(static_cast<std::size_t>(count));
    }
  }
  if (files.fsync(fd) != 0) refuse("sync");
  if (file.close() != 0) refuse("close");
}

void sync_directory(FileSystem& files, const std::string& path) {
  const int fd = files.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) throw system_error(fmt::format("{}: cannot open the directory", path));
  OpenFile directory(files, fd);
  if (files.fsync(fd) != 0) throw system_error(fmt::format("{}: cannot sync", path));
}

}  // namespace paceline
