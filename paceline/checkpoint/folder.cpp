#include "paceline/checkpoint/folder.h"

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>
#include <sys/stat.h>

#include "paceline/core/error.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::error_code list(const std::string& folder, std::vector<std::string>& names) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return error;
}

// What is gone was removed by another process.
bool is_gone(int result) { return result == 0 || errno == ENOENT; }

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (const auto error = list(folder, names)) {
    throw Error(ErrorCode::kSystem, fmt::format("{}: cannot list: {}", folder, error.message()));
  }
  return names;
}

bool remove_tree(FileSystem& files, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return is_gone(-1);
  if (!S_ISDIR(status.st_mode)) return is_gone(files.unlink(path));
  std::vector<std::string> names;
  if (const auto error = list(path, names)) {
    errno = error.value();
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
