#include "paceline/files/checkpoint/file_system.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline {

namespace {

// The opened parent folder of a path, and the path's last component.
struct FilePlace {
  Fd folder;
  std::string name;
};

// Returns a place without a folder, and sets errno, when the folder cannot be opened.
FilePlace place_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return {open_without_links(folder, O_PATH | O_DIRECTORY),
          slash == std::string::npos ? path : path.substr(slash + 1)};
}

class RealFileSystem final : public FileSystem {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return open_without_links(path, flags, mode).release();
  }
  ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) override {
    return ::pread(fd, bytes.data(), bytes.size(), position);
  }
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return ::write(fd, bytes.data(), bytes.size());
  }
  int fsync(int fd) override { return ::fsync(fd); }
  int close(int fd) override { return ::close(fd); }
  int mkdir(const std::string& path, mode_t mode) override {
    const FilePlace place = place_of(path);
    return place.folder ? ::mkdirat(place.folder.get(), place.name.c_str(), mode) : -1;
  }
  int rename(const std::string& from, const std::string& to) override { return move(from, to, 0); }
  int exchange(const std::string& a, const std::string& b) override {
    return move(a, b, RENAME_EXCHANGE);
  }
  int unlink(const std::string& path) override { return remove(path, 0); }
  int rmdir(const std::string& path) override { return remove(path, AT_REMOVEDIR); }

 private:
  static int move(const std::string& from, const std::string& to, unsigned flags) {
    const FilePlace source = place_of(from);
    if (!source.folder) return -1;
    const FilePlace target = place_of(to);
    if (!target.folder) return -1;
    return ::renameat2(source.folder.get(), source.name.c_str(), target.folder.get(),
                       target.name.c_str(), flags);
  }
  static int remove(const std::string& path, int flags) {
    const FilePlace place = place_of(path);
    return place.folder ? ::unlinkat(place.folder.get(), place.name.c_str(), flags) : -1;
  }
};

}  // namespace

bool FileSystem::pass_cache(int fd, bool passes) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, passes ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void refuse(const std::string& what, int error_number) {
  const Error error = system_error(what, error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) throw DiskFull(error.code(), error.what());
  throw error;
}

FileSystem& FileSystem::real() {
  static auto* const instance = new RealFileSystem;  // leaked: destructors at exit may still use it
  return *instance;
}

namespace {

constexpr std::size_t kLargestCall = std::size_t{64} << 20;
// A write that bypasses the kernel's cache consists of whole blocks, aligned in memory and in the
// file.
constexpr std::size_t kBlock = 4 << 10;
// For fewer bytes, waiting for the disk costs more than the copy into the cache.
constexpr std::size_t kMinPast = 1 << 20;

// A descriptor that the destructor closes with FileSystem::close().
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

int open_for_reading(FileSystem& files, const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const int fd = files.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd >= 0) return fd;
  if (errno == ENOENT || errno == ENOTDIR) {
    const std::string problem = folder_problem(path);
    fail(ErrorCode::kCorrupt, "{}: {}", path, problem.empty() ? "the file is missing" : problem);
  }
  if (errno == ELOOP)
    fail(ErrorCode::kCorrupt, "{}: the file is a symbolic link, which is not followed", path);
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
  if (fd_ >= 0) return;
  if (errno == ENOSPC || errno == EDQUOT) give_up("create");
  fail(ErrorCode::kSystem, "{}: cannot create: {}", path, describe_refusal(path, errno));
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

// Returns how many of these bytes the next call should write, and switches the bypass of the cache
// on or off for them.
std::size_t PlainFileWriter::prepare(std::span<const std::byte> bytes) {
  const std::size_t most = std::min(bytes.size(), kLargestCall);
  const std::uint64_t place = reinterpret_cast<std::uintptr_t>(bytes.data()) | written_;
  const bool passes = can_pass_ && place % kBlock == 0 && most >= kMinPast;
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
    const ssize_t count = files_.write(fd_, bytes.first(prepare(bytes)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && passes_) {  // the file system needs larger blocks
      can_pass_ = false;
      continue;
    }
    if (count == 0) errno = EIO;  // no progress and no reason: do not retry for ever
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

namespace {

using Listing = std::unique_ptr<DIR, int (*)(DIR*)>;

// Returns 0 or the error number.
int list(const std::string& folder, std::vector<std::string>& names) {
  Fd opened = open_without_links(folder, O_RDONLY | O_DIRECTORY);
  if (!opened) return errno;
  const Listing listing(::fdopendir(opened.get()), ::closedir);
  if (!listing) return errno;
  opened.release();  // the listing owns it now
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(listing.get());
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

// A path that does not exist counts as removed; another process may have removed it.
bool is_gone(int result) { return result == 0 || errno == ENOENT; }

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (const int error = list(folder, names))
    fail(ErrorCode::kSystem, "{}: cannot list: {}", folder, describe_refusal(folder + "/", error));
  return names;
}

bool remove_tree(FileSystem& files, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return is_gone(-1);
  if (!S_ISDIR(status.st_mode)) return is_gone(files.unlink(path));
  std::vector<std::string> names;
  if (const int error = list(path, names)) {
    errno = error;
    return is_gone(-1);
  }
  int error_number = 0;
  for (const auto& name : names) {
    if (!remove_tree(files, path + "/" + name)) error_number = errno;
  }
  if (error_number == 0) return is_gone(files.rmdir(path));
  errno = error_number;
  return false;
}

}  // namespace paceline
