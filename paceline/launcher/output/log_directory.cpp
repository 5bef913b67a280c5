#include "paceline/launcher/output/log_directory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/launcher/output/line_formatter.h"

namespace paceline::launcher {

namespace {

// The longest wait for other launchers that are claiming the same folder.
constexpr std::chrono::seconds kOthersClaim{1};
// The most bytes of a job's name that are read from a claim file.
constexpr std::size_t kLongestName = 512;

// Replaces the content of a claim file with the name of the job that holds the claim.
bool write_holder(int file, const std::string& job) {
  return ftruncate(file, 0) == 0 && write_whole_at(file, 0, as_bytes(job));
}

// Returns the name in a claim file, or "another job" if the file has no name.
std::string read_holder(int file) {
  char text[kLongestName];
  const ssize_t length = read_whole_at(file, 0, std::as_writable_bytes(std::span(text)));
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "another job";
}

bool is_removed(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && status.st_nlink == 0;
}

}  // namespace

FolderClaim claim_folder(const std::string& folder, const std::string& job) {
  const std::string path = folder + "/" + kClaimFile;
  const Deadline deadline = Deadline::after(kOthersClaim);
  Fd file;
  for (;;) {
    if (!file || is_removed(file.get())) {
      file = open_to_write(path, O_RDWR | O_CREAT);
      if (!file) return {.problem = describe_refusal(path, errno)};
    }
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_removed(file.get())) continue;
      if (!write_holder(file.get(), job)) return {.lock = std::move(file)};  // a full disk
    } else if (errno != EWOULDBLOCK) {
      return {.lock = std::move(file)};
    }
    // Between the exclusive lock and the shared one there is a moment without any lock, in which
    // another job may have written its name or removed the file.
    const bool shared = flock(file.get(), LOCK_SH | LOCK_NB) == 0;
    if ((shared && !is_removed(file.get())) || deadline.expired()) break;
    poll(nullptr, 0, 1);
  }
  std::string holder = read_holder(file.get());
  if (holder == job) return {.lock = std::move(file)};
  return {.holder = std::move(holder)};
}

void release_folder(const std::string& folder, Fd lock) {
  if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || is_removed(lock.get())) return;
  unlink((folder + "/" + kClaimFile).c_str());
}

namespace {

using Folder = std::unique_ptr<DIR, int (*)(DIR*)>;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Returns whether Paceline makes files with this name, for example "rank-000.log" or
// "rank-001-000.timeline".
bool is_made_by_paceline(std::string_view name) {
  if (name == kClaimFile) return true;
  if (!name.starts_with("rank-")) return false;
  const auto dot = std::min(name.find('.'), name.size());
  const std::string_view number = name.substr(5, dot - 5), kind = name.substr(dot);
  const bool numbered = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
    return is_digit(c) || c == '-';
  });
  constexpr std::array kKinds = {".log", ".flight", ".steps", ".calls", ".timeline"};
  return numbered && std::ranges::find(kKinds, kind) != kKinds.end();
}

// Returns the names of the files in a folder that may be removed. Returns nullopt for a folder that
// must be kept: it has a file that Paceline did not make, or one that was written since `before`.
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

// Returns whether a running job has claimed the folder; `claim` is its claim file, if it has one.
// If no job has claimed it, `claim` holds the exclusive lock afterwards, so that no job can claim
// the folder while it is removed.
bool is_in_use(const Fd& claim) { return claim && flock(claim.get(), LOCK_EX | LOCK_NB) != 0; }

// Removes the folder `name` from the folder `base`, if this user owns it, if Paceline made all
// files in it, if nothing in it was written since `before`, and if no running job has claimed it.
void remove_if_old(int base, const char* name, std::time_t before) {
  Fd opened(openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!opened || fstat(opened.get(), &status) != 0) return;
  if (status.st_uid != geteuid() || status.st_mtime >= before) return;
  const Folder folder(fdopendir(opened.get()), closedir);
  if (!folder) return;
  const int number = opened.release();  // `folder` owns the descriptor now
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
  std::vector<std::tuple<std::time_t, long, std::string>> kept;  // seconds, ns, path
  const Folder folder(opendir(base.c_str()), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (!is_temporary_log_folder(name)) continue;
    const Fd opened(
        openat(dirfd(folder.get()), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!opened || fstat(opened.get(), &status) != 0 || status.st_uid != geteuid()) continue;
    const Fd claim(openat(opened.get(), kClaimFile, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (is_in_use(claim)) continue;
    kept.emplace_back(status.st_mtim.tv_sec, status.st_mtim.tv_nsec, base + "/" + name);
  }
  std::sort(kept.rbegin(), kept.rend());
  std::vector<std::string> folders;
  for (auto& [seconds, ns, path] : kept) folders.push_back(std::move(path));
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

namespace {

std::string absolute(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).string();
}

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  fail(ErrorCode::kInvalid, "--log-dir: the folder {} {}", neutralise_in_line(folder), why);
}

// Creates a folder in `base` that only its owner can read, with a name like
// paceline-20261231-235959-x7Fq2a, and returns its path. If that fails, sets `problem` and returns
// "".
std::string make_folder_in(const std::string& base, std::string& problem) {
  std::string name =
      fmt::format("{}/paceline-{:%Y%m%d-%H%M%S}-XXXXXX", base, fmt::localtime(std::time(nullptr)));
  if (mkdtemp(name.data()) != nullptr) return name;
  problem = fmt::format("no log folder could be made in {}: {}", base, std::strerror(errno));
  return {};
}

// Returns how many times SLURM has requeued this job.
int num_requeues() {
  const char* text = std::getenv("SLURM_RESTART_COUNT");
  return text != nullptr ? std::atoi(text) : 0;
}

// Writes a line that marks where a part of the log begins. Ignores a full disk, which is
// reported when the first line of the rank cannot be written.
void mark(const Fd& file, const std::string& what) {
  const std::string line = fmt::format("=== paceline: {} ===\n", what);
  write_whole(file.get(), as_bytes(line));
}

}  // namespace

LogDirectory::LogDirectory(const std::string& wanted, const std::string& job)
    : temporary_(wanted.empty()) {
  if (temporary_) {
    const std::string base = absolute(base_of_log_folders());
    remove_old_log_folders(base);
    use_new(base, job);
  } else {
    use(absolute(wanted), job);
  }
}

LogDirectory::~LogDirectory() {
  release_folder(path_, std::move(claim_));
  if (temporary_) ::rmdir(path_.c_str());  // only if it is empty: the job did not start
}

void LogDirectory::use(const std::string& wanted, const std::string& job) {
  path_ = wanted;
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) refuse(path_, "could not be made: " + error.message());
  FolderClaim claim = claim_folder(path_, job);
  if (!claim.problem.empty()) refuse(path_, "cannot be written: " + claim.problem);
  if (!claim.holder.empty()) return use_one_inside(job, claim.holder);
  claim_ = std::move(claim.lock);
}

void LogDirectory::use_new(const std::string& base, const std::string& job) {
  path_ = make_folder_in(base, problem_);
  if (problem_.empty()) claim_ = claim_folder(path_, job).lock;
}

void LogDirectory::use_one_inside(const std::string& job, const std::string& holder) {
  const std::string reason =
      fmt::format("the log folder {} is in use by another job ({})", path_, neutralise(holder));
  use_new(path_, job);
  if (problem_.empty()) {
    notice_ = fmt::format("{}; logs and records are in {}", reason, path_);
  } else {
    problem_ = fmt::format("{}; {}", reason, problem_);
  }
}

std::string LogDirectory::path_of(int rank) const {
  return fmt::format("{}/rank-{:03}.log", path_, rank);
}

Fd LogDirectory::open_log(int rank, int generation) {
  if (!problem_.empty()) return {};
  const std::string path = path_of(rank);
  const bool goes_on = generation > 0 || made_.contains(path) || num_requeues() > 0;
  const int anew = goes_on ? 0 : O_TRUNC;
  Fd file = open_to_write(path, O_WRONLY | O_CREAT | O_APPEND | anew);
  if (!file) {
    problem_ = fmt::format("the log {} could not be made: {}", path, describe_refusal(path, errno));
    return file;
  }
  made_.insert(path);
  if (generation > 0) {
    mark(file, fmt::format("generation {}", generation));
  } else if (num_requeues() > 0) {
    mark(file, fmt::format("requeue {}", num_requeues()));
  }
  return file;
}

void LogDirectory::remove_if_temporary() {
  if (!temporary_ || path_.empty()) return;
  for (const std::string& file : made_) unlink(file.c_str());
  release_folder(path_, std::move(claim_));
  rmdir(path_.c_str());
}

}  // namespace paceline::launcher
