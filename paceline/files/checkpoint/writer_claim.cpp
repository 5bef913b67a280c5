#include "paceline/files/checkpoint/writer_claim.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/files/checkpoint/file_system.h"

namespace paceline {
namespace {

constexpr std::chrono::milliseconds kPause{50};
constexpr std::string_view kClaimPrefix = ".writer-";
constexpr std::string_view kPrepared = ".writer-new-";
constexpr const char* kOwnerFile = "/owner.json";
constexpr const char* kContested = "/contested";
constexpr std::uint64_t kOwnerLimit = 64 << 10;
constexpr std::int64_t kEndOfNumbers = std::int64_t{1} << 40;  // Paceline uses only smaller numbers

std::string claim_name(std::int64_t number) { return fmt::format("{}{:08}", kClaimPrefix, number); }

// The number of a workspace; 0 if `name` is not the name of a workspace.
std::int64_t number_of(const std::string& name) {
  if (!name.starts_with(kClaimPrefix)) return 0;
  std::int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kClaimPrefix.size(), end, number);
  const bool is_claim = error == std::errc() && stop == end && name == claim_name(number);
  return is_claim && number > 0 && number < kEndOfNumbers ? number : 0;
}

bool exists(const std::string& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
}

// Returns no descriptor when the file is missing or is not a regular file.
Fd open_owner(const std::string& folder, int flags) {
  const auto path = folder + kOwnerFile;
  Fd file = open_without_links(path, O_RDWR | O_NONBLOCK | flags, 0644);
  if (!file && errno != ENOENT && errno != ELOOP && errno != ENXIO && errno != ENOTDIR &&
      errno != EISDIR)
    throw system_error(path + ": cannot open");
  struct stat status {};
  if (file && (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))) return {};
  return file;
}

// Returns false when another process has the lock.
bool try_lock(const Fd& file, int kind, const std::string& folder) {
  if (::flock(file.get(), kind | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) throw system_error(folder + kOwnerFile + ": cannot lock");
  return false;
}

// Whether the owner of a workspace is alive: a live owner holds the lock. The test takes a shared
// lock, so that processes that test at the same time do not mistake each other for the owner.
bool lives(const std::string& folder) {
  const Fd file = open_owner(folder, 0);
  return file && !try_lock(file, LOCK_SH, folder);
}

bool is_same_file(const Fd& file, const std::string& path) {
  struct stat mine {
  }, there{};
  return ::fstat(file.get(), &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

}  // namespace

struct WriterClaim::Owner {
  WriterId id;
  std::string process = "unknown";
  std::string host = "unknown";

  // If the file cannot be read, returns an owner without a job, whose process and host are unknown.
  static Owner in(const std::string& folder, FileSystem& files) {
    Owner owner;
    try {
      const auto path = folder + kOwnerFile;
      const auto text = to_string(read_plain_file(files, path, kOwnerLimit));
      const auto json = parse_strict_json(text, path, 1);
      owner = {.id = {json.at("job"), json.at("generation")},
               .process = fmt::to_string(json.at("process").get<std::int64_t>()),
               .host = json.at("host")};
    } catch (const std::exception& error) {
      log::debug(error.what());
    }
    return owner;
  }

  std::string text() const {
    const nlohmann::json json = {{"job", id.job},
                                 {"generation", id.generation},
                                 {"process", ::getpid()},
                                 {"host", host_name()}};
    // The launcher's name for a job may be invalid UTF-8.
    return json_text(json) + "\n";
  }
};

WriterClaim::WriterClaim(std::string directory, WriterId who, std::chrono::milliseconds timeout,
                         FileSystem& files)
    : directory_(std::move(directory)), who_(std::move(who)), files_(files) {
  auto deadline = Deadline::after(timeout);
  for (Vigil vigil; !take_next(deadline);) vigil.sees_passed(deadline);
}

std::string WriterClaim::folder_of(std::int64_t number) const {
  return directory_ + "/" + claim_name(number);
}

std::int64_t WriterClaim::last_number() const {
  std::int64_t last = 0;
  for (const auto& name : names_in(directory_)) last = std::max(last, number_of(name));
  return last;
}

// Returns false when the caller has to try again, because the writer is still alive or another
// process was faster.
bool WriterClaim::take_next(Deadline deadline) {
  const auto last = last_number();
  check(last + 1 < kEndOfNumbers, "checkpoint directory {}: remove {}, which Paceline did not make",
        directory_, folder_of(last));
  if (last > 0 && !may_follow(last, deadline)) return false;
  workspace_ = fmt::format("{}/{}{}", directory_, kPrepared, random_hex(8));
  if (files_.mkdir(workspace_, 0755) != 0) throw system_error(workspace_ + ": cannot create");
  try {
    if (!write_owner() || !publish(last + 1)) {
      remove_tree(files_, workspace_);
      return false;
    }
    take_away_others();
  } catch (const Error&) {
    remove_tree(files_, workspace_);
    throw;
  }
  check_held();
  return true;
}

// Returns whether `folder` exists and is a folder. Only its owner has the rights to take it over,
// so a folder that may_own() refuses is an error.
bool WriterClaim::is_workspace(const std::string& folder) const {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return false;
  if (!S_ISDIR(status.st_mode)) {
    log::warning(
        fmt::format("checkpoint directory {}: {} is {}, not a writer's folder; removing "
                    "it, but nothing that it may point to",
                    directory_, folder, S_ISLNK(status.st_mode) ? "a symbolic link" : "a file"));
    return false;
  }
  check(may_own(status.st_uid, directory_),
        "checkpoint directory {}: {} belongs to user {}, neither to this user ({}) nor to the "
        "directory's owner; remove it, or choose another directory",
        directory_, folder, status.st_uid, ::geteuid());
  return true;
}

bool WriterClaim::may_follow(std::int64_t last, Deadline deadline) {
  const auto folder = folder_of(last);
  if (!is_workspace(folder)) return true;
  if (!lives(folder)) {
    remove_leftovers(folder);
    return true;
  }
  const Owner owner = Owner::in(folder, files_);
  if (may_depose(owner, folder)) return true;
  if (last_number() != last) return false;  // a later writer has removed `folder`
  if (deadline.expired()) refuse(owner, folder);
  std::this_thread::sleep_for(kPause);  // there is no signal when a lock becomes free
  return false;
}

// Removes the leftovers of a dead writer before the claim, because a full disk may have no room for
// the next workspace.
void WriterClaim::remove_leftovers(const std::string& folder) {
  try {
    for (const auto& name : names_in(folder)) {
      if ("/" + name != kOwnerFile) remove_tree(files_, folder + "/" + name);
    }
  } catch (const Error&) {
    if (exists(folder)) throw;  // otherwise a competitor has removed it
  }
}

bool WriterClaim::may_depose(const Owner& owner, const std::string& folder) const {
  return !who_.job.empty() && owner.id.job == who_.job && owner.id.generation < who_.generation &&
         !exists(folder + kContested);
}

void WriterClaim::refuse(const Owner& owner, const std::string& folder) {
  const bool has_same_name = !who_.job.empty() && owner.id.job == who_.job;
  if (has_same_name && owner.id.generation == who_.generation) {
    files_.mkdir(folder + kContested, 0755);
  }
  if (has_same_name && owner.id.generation > who_.generation) {
    fail(ErrorCode::kAborted,
         "checkpoint directory {}: generation {} of this job (process {} on host {}) writes to it; "
         "this process belongs to generation {}, which that one has replaced",
         directory_, owner.id.generation, owner.process, owner.host, who_.generation);
  }
  fail(ErrorCode::kInvalid,
       "checkpoint directory {}: another job, or another rank of this one (process {} on host {}), "
       "writes to it; give each job its own directory, in which one rank saves, or wait for that "
       "one to end",
       directory_, owner.process, owner.host);
}

// Returns false when a competitor is testing the lock, or has removed the workspace as that of a
// dead writer.
bool WriterClaim::write_owner() {
  lock_ = open_owner(workspace_, O_CREAT | O_EXCL);
  if (!lock_ || !try_lock(lock_, LOCK_EX, workspace_)) return false;
  const auto text = Owner{.id = who_}.text();
  if (!write_whole(lock_.get(), as_bytes(text)) || ::fsync(lock_.get()) != 0) {
    throw system_error(workspace_ + kOwnerFile + ": cannot write");
  }
  return true;
}

// Returns false when a competitor was faster.
bool WriterClaim::publish(std::int64_t number) {
  const auto folder = folder_of(number);
  if (files_.rename(workspace_, folder) != 0) {
    if (errno == EEXIST || errno == ENOTEMPTY || errno == ENOENT) return false;
    throw system_error(fmt::format("{}: cannot rename to {}", workspace_, folder));
  }
  workspace_ = folder;
  number_ = number;
  // If the numbers differ, a later writer has already replaced and removed the claim.
  return last_number() == number;
}

// Removes a prepared workspace whose process ended before publishing it. This process holds the
// lock until the workspace has been removed, so that a process which is about to lock it notices.
void WriterClaim::remove_if_dead(const std::string& prepared) {
  if (!is_workspace(prepared)) {
    files_.unlink(prepared);
    return;
  }
  const Fd file = open_owner(prepared, 0);
  if (!file) {
    files_.rmdir(prepared);
  } else if (try_lock(file, LOCK_EX, prepared)) {
    remove_tree(files_, prepared);
  }
}

void WriterClaim::take_away_others() {
  for (const auto& name : names_in(directory_)) {
    const auto number = number_of(name);
    const auto path = directory_ + "/" + name;
    if (name.starts_with(kPrepared)) remove_if_dead(path);
    if (number == 0 || number >= number_) continue;
    const auto former = fmt::format("{}/former-{}", workspace_, random_hex(8));
    if (files_.rename(path, former) != 0) {
      if (errno == ENOENT) continue;  // another process has removed `path` or `workspace_`
      throw system_error(fmt::format("{}: cannot rename to {}", path, former));
    }
    if (!remove_tree(files_, former)) log::warning(system_error(former + ": cannot remove").what());
  }
}

void WriterClaim::check_held() const {
  if (is_same_file(lock_, workspace_ + kOwnerFile)) return;
  const Owner owner = Owner::in(folder_of(last_number()), files_);
  fail(ErrorCode::kAborted,
       "checkpoint directory {}: generation {} of this job (process {} on host {}) has taken over; "
       "generation {} writes nothing there any more",
       directory_, owner.id.generation, owner.process, owner.host, who_.generation);
}

}  // namespace paceline
