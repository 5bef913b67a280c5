#include "paceline/launch/log_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

namespace paceline::launch {
namespace {

// paceline-20261231-235959-x7Fq2a, readable by its owner alone.
std::string make_temporary(std::string& problem) {
  const char* base = std::getenv("TMPDIR");
  const std::string folder = base != nullptr && *base != '\0' ? base : "/tmp";
  std::string name = fmt::format("{}/paceline-{:%Y%m%d-%H%M%S}-XXXXXX", folder,
                                 fmt::localtime(std::time(nullptr)));
  if (mkdtemp(name.data()) != nullptr) return name;
  problem = fmt::format("no log folder could be made in {}: {}", folder, std::strerror(errno));
  return {};
}

// A disk that is full is noticed by the first line of the rank itself.
void mark_generation(const Fd& file, int generation) {
  const std::string line = fmt::format("=== paceline: generation {} ===\n", generation);
  if (write(file.get(), line.data(), line.size()) < 0) return;
}

}  // namespace

LogDirectory::LogDirectory(const std::string& wanted) : path_(wanted), temporary_(wanted.empty()) {
  if (temporary_) {
    path_ = make_temporary(problem_);
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) {
    problem_ = fmt::format("the log folder {} could not be made: {}", path_, error.message());
  }
}

std::string LogDirectory::path_of(int rank) const {
  return fmt::format("{}/rank-{:03}.log", path_, rank);
}

Fd LogDirectory::open_log(int rank, int generation) {
  if (!problem_.empty()) return {};
  const std::string path = path_of(rank);
  const int anew = generation == 0 && !made_.contains(path) ? O_TRUNC : 0;
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | anew, 0644));
  if (!file) {
    problem_ = fmt::format("the log {} could not be made: {}", path, std::strerror(errno));
    return file;
  }
  made_.insert(path);
  if (generation > 0) mark_generation(file, generation);
  return file;
}

void LogDirectory::remove_if_temporary() {
  if (!temporary_ || path_.empty()) return;
  for (const std::string& file : made_) unlink(file.c_str());
  rmdir(path_.c_str());
}

}  // namespace paceline::launch
