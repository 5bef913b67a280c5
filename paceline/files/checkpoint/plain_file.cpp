#include "paceline/files/checkpoint/plain_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

constexpr std::size_t kLargestCall = std::size_t{64} << 20;
// What goes past the kernel's cache are whole blocks, in memory and in the file.
constexpr std::size_t kBlock = 4 << 10;
// Fewer bytes are not worth waiting for the disk.
constexpr std::size_t kLeastPast = 1 << 20;

// A descriptor closed through the interface.
class OpenFile {
 public:
  OpenFile(FileSystem& files, int fd) : files_(files), fd_(fd) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { files_.close(fd_); }
  int fd() const { return fd_; }

 private:
  FileSystem& files_;
  int fd_;
};

ssize_t write_some(FileSystem& files, int fd, std::span<const std::byte> bytes) {
  ssize_t count;
  do {
    count = files.write(fd, bytes);
  } while (count < 0 && errno == EINTR);
  return count;
}

int open_for_reading(FileSystem& files, const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = files.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd >= 0) return fd;
  if (errno == ENOENT) fail(ErrorCode::kCorrupt, "{}: the file is missing", path);
  if (errno == ELOOP)
    fail(ErrorCode::kCorrupt, "{}: there is a symbolic link, which is not followed", path);
  if (errno == ENXIO) fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
  throw system_error(fmt::format("{}: cannot open", path));
}

}  // namespace

int open_plain_file(FileSystem& files, const std::string& path) {
  const int fd = open_for_reading(files, path);
  struct stat status {};
  const bool is_known = ::fstat(fd, &status) == 0;
  const int error_number = errno;
  if (is_known && S_ISREG(status.st_mode)) return fd;
  files.close(fd);
  if (!is_known) throw system_error(fmt::format("{}: cannot stat", path), error_number);
  fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
}

void read_plain_file_at(FileSystem& files, int fd, const std::string& path, std::uint64_t position,
                        std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = files.read_at(fd, static_cast<off_t>(position),
                                        bytes.first(std::min(bytes.size(), kLargestCall)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error(fmt::format("{}: cannot read at byte {}", path, position));
    if (count == 0) fail(ErrorCode::kCorrupt, "{}: ends at byte {}", path, position);
    position += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes) {
  const OpenFile file(files, open_plain_file(files, path));
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) throw system_error(fmt::format("{}: cannot stat", path));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes, more than the {} expected", path, size, max_bytes);
  }
  std::vector<std::byte> bytes(size);
  read_plain_file_at(files, file.fd(), path, 0, bytes);
  return bytes;
}

PlainFileWriter::PlainFileWriter(FileSystem& files, const std::string& path, std::uint64_t size)
    : files_(files),
      path_(path),
      size_(size),
      fd_(files.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644)) {
  if (fd_ < 0) give_up("create");
}

PlainFileWriter::~PlainFileWriter() {
  if (fd_ >= 0) files_.close(fd_);
}

void PlainFileWriter::give_up(const char* what) const {
  const int error_number = errno;
  refuse(fmt::format("{}: cannot {} (the file needs {} bytes, {} were written)", path_, what, size_,
                     written_),
         error_number);
}

// How many of these bytes the next call writes; it is seen to that they go past the cache where
// they can.
std::size_t PlainFileWriter::prepare(std::span<const std::byte> bytes) {
  const std::size_t most = std::min(bytes.size(), kLargestCall);
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(bytes.data()) | written_;
  const bool passes = can_pass_ && place % kBlock == 0 && most >= kLeastPast;
  if (passes != passes_) {
    if (files_.pass_cache(fd_, passes)) {
      passes_ = passes;
    } else if (passes) {
      can_pass_ = false;
    } else {
      give_up("write");
    }
  }
  return passes_ ? most / kBlock * kBlock : most;
}

void PlainFileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write_some(files_, fd_, bytes.first(prepare(bytes)));
    if (count < 0 && errno == EINVAL && passes_) {  // larger blocks than these are wanted
      can_pass_ = false;
      continue;
    }
    if (count == 0) errno = EIO;  // no progress and no reason: never try forever
    if (count <= 0) give_up("write");
    written_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void PlainFileWriter::finish() {
  if (files_.fsync(fd_) != 0) give_up("sync");
  if (files_.close(std::exchange(fd_, -1)) != 0) give_up("close");
}

void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts) {
  std::uint64_t size = 0;
  for (const auto part : parts) size += part.size();
  PlainFileWriter file(files, path, size);
  for (const auto part : parts) file.write(part);
  file.finish();
}

void sync_directory(FileSystem& files, const std::string& path) {
  const int fd = files.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) refuse(fmt::format("{}: cannot open the directory", path));
  OpenFile directory(files, fd);
  if (files.fsync(fd) != 0) refuse(fmt::format("{}: cannot sync", path));
}

}  // namespace paceline
