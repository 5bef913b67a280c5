#include "paceline/launcher/output/old_log_folders.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/fd.h"
#include "paceline/launcher/output/folder_claim.h"

namespace paceline::launcher {
namespace {

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// "rank-000.log", "rank-001-000.timeline".
bool is_made_by_paceline(std::string_view name) {
  if (name == kClaimFile) return true;
  if (!name.starts_with("rank-")) return false;
  const auto dot = std::min(name.find('.'), name.size());
  const std::string_view number = name.substr(5, dot - 5), kind = name.substr(dot);
  const bool numbered = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
    return is_digit(c) || c == '-';
  });
  return numbered &&
         (kind == ".log" || kind == ".flight" || kind == ".steps" || kind == ".timeline");
}

// Its files; nothing when it has to stay.
std::optional<std::vector<std::string>> files_to_remove(const Folder& folder, std::time_t before) {
  std::vector<std::string> files;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat status {};
    if (fstatat(dirfd(folder.get()), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
    if (!is_made_by_paceline(name) || !S_ISREG(status.st_mode) || status.st_mtime >= before) {
      return {};
    }
    files.push_back(name);
  }
  return files;
}

// Also while it is removed: no job can claim it meanwhile.
bool is_in_use(const Fd& claim) { return claim && flock(claim.get(), LOCK_EX | LOCK_NB) != 0; }

void remove_if_old(int base, const char* name, std::time_t before) {
  Fd opened(openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!opened || fstat(opened.get(), &status) != 0) return;
  if (status.st_uid != geteuid() || status.st_mtime >= before) return;
  const Folder folder(fdopendir(opened.get()), closedir);
  if (!folder) return;
  const int number = opened.release();  // the folder's now
  const auto files = files_to_remove(folder, before);
  const Fd claim(openat(number, kClaimFile, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!files || is_in_use(claim)) return;
  for (const std::string& file : *files) unlinkat(number, file.c_str(), 0);
  unlinkat(base, name, AT_REMOVEDIR);
}

}  // namespace

bool is_temporary_log_folder(const std::string& name) {
  constexpr std::string_view kForm = "paceline-dddddddd-dddddd-xxxxxx";
  return name.size() == kForm.size() &&
         std::equal(name.begin(), name.end(), kForm.begin(), [](char c, char form) {
           if (form == 'd') return is_digit(c);
           if (form == 'x') return std::isalnum(static_cast<unsigned char>(c)) != 0;
           return c == form;
         });
}

std::string base_of_log_folders() {
  const char* const base = std::getenv("TMPDIR");
  return base != nullptr && *base != '\0' ? base : "/tmp";
}

std::vector<std::string> kept_log_folders(const std::string& base) {
  std::vector<std::pair<std::time_t, std::string>> kept;
  const Folder folder(opendir(base.c_str()), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (!is_temporary_log_folder(name)) continue;
    const Fd opened(
        openat(dirfd(folder.get()), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!opened || fstat(opened.get(), &status) != 0 || status.st_uid != geteuid()) continue;
    const Fd claim(openat(opened.get(), kClaimFile, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!is_in_use(claim)) kept.emplace_back(status.st_mtime, base + "/" + name);
  }
  std::sort(kept.rbegin(), kept.rend());
  std::vector<std::string> folders;
  for (auto& [time, path] : kept) folders.push_back(std::move(path));
  return folders;
}

void remove_old_log_folders(const std::string& base, std::chrono::seconds age) {
  const Folder folder(opendir(base.c_str()), closedir);
  if (!folder) return;
  const std::time_t before = std::time(nullptr) - age.count();
  while (const dirent* entry = readdir(folder.get())) {
    if (is_temporary_log_folder(entry->d_name)) {
      remove_if_old(dirfd(folder.get()), entry->d_name, before);
    }
  }
}

}  // namespace paceline::launcher
