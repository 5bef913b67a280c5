#include "paceline/files/checkpoint/folder.h"

#include <cerrno>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/no_links.h"

namespace paceline {
namespace {

using Listing = std::unique_ptr<DIR, int (*)(DIR*)>;

// Returns 0 or the error number.
int list(const std::string& folder, std::vector<std::string>& names) {
  Fd opened = open_without_links(folder, O_RDONLY | O_DIRECTORY);
  if (!opened) return errno;
  const Listing listing(::fdopendir(opened.get()), ::closedir);
  if (!listing) return errno;
  opened.release();  // the listing's now
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(listing.get());
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

// What is gone was removed by another process.
bool is_gone(int result) { return result == 0 || errno == ENOENT; }

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (const int error = list(folder, names))
    fail(ErrorCode::kSystem, "{}: cannot list: {}", folder, describe_refusal(error));
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
