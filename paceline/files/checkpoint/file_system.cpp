#include "paceline/files/checkpoint/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/no_links.h"

namespace paceline {
namespace {

// The folder that a path lies in, open, and the path's name there.
struct Place {
  Fd folder;
  std::string name;
};

// Returns a place without a folder, and sets errno, when the folder cannot be opened.
Place place_of(const std::string& path) {
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
    const Place place = place_of(path);
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
    const Place source = place_of(from);
    if (!source.folder) return -1;
    const Place target = place_of(to);
    if (!target.folder) return -1;
    return ::renameat2(source.folder.get(), source.name.c_str(), target.folder.get(),
                       target.name.c_str(), flags);
  }
  static int remove(const std::string& path, int flags) {
    const Place place = place_of(path);
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

}  // namespace paceline
