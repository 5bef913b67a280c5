#include "paceline/launcher/output/log_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/no_links.h"
#include "paceline/launcher/output/folder_claim.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/output/old_log_folders.h"

namespace paceline::launcher {
namespace {

std::string absolute(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).string();
}

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  fail(ErrorCode::kInvalid, "--log-dir: the folder {} {}", neutralise_in_line(folder), why);
}

// paceline-20261231-235959-x7Fq2a, readable by its owner alone.
std::string make_folder_in(const std::string& base, std::string& problem) {
  std::string name =
      fmt::format("{}/paceline-{:%Y%m%d-%H%M%S}-XXXXXX", base, fmt::localtime(std::time(nullptr)));
  if (mkdtemp(name.data()) != nullptr) return name;
  problem = fmt::format("no log folder could be made in {}: {}", base, std::strerror(errno));
  return {};
}

// How often SLURM has queued this job again.
int num_requeues() {
  const char* text = std::getenv("SLURM_RESTART_COUNT");
  return text != nullptr ? std::atoi(text) : 0;
}

// A disk that is full is noticed by the first line of the rank itself.
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

LogDirectory::~LogDirectory() { release_folder(path_, std::move(claim_)); }

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
    problem_ = fmt::format("the log {} could not be made: {}", path, describe_refusal(errno));
    return file;
  }
  made_.insert(path);
  if (generation > 0) {
    mark(file, fmt::format("generation {}", generation));
  } else if (num_requeues() > 0) {
    mark(file, fmt::format("queued again, time {}", num_requeues()));
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
