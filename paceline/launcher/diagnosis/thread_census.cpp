#include "paceline/launcher/diagnosis/thread_census.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace paceline::launcher {
namespace {

constexpr double kBusyShare = 0.02;

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return threads;
}

long ticks_of(pid_t pid, pid_t thread) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/stat", pid, thread));
  std::string line;
  std::getline(file, line);
  // The name may hold anything; after its last parenthesis user and system time are the 12th and
  // 13th word.
  const auto end = line.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream words(line.substr(end + 1));
  std::string word;
  for (int i = 0; i < 11; ++i) words >> word;
  long user = 0, system = 0;
  words >> user >> system;
  return user + system;
}

}  // namespace

std::vector<pid_t> family_of(pid_t pid) {
  std::vector<pid_t> family = {pid};
  for (std::size_t i = 0; i < family.size(); ++i) {
    const pid_t member = family[i];
    for (const pid_t thread : threads_of(member)) {
      std::ifstream file(fmt::format("/proc/{}/task/{}/children", member, thread));
      for (pid_t child = 0; file >> child;) family.push_back(child);
    }
  }
  return family;
}

std::uint64_t memory_of(const std::vector<pid_t>& processes) {
  std::uint64_t kilobytes = 0;
  for (const pid_t pid : processes) {
    std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid));
    for (std::string word; file >> word;) {
      std::uint64_t value = 0;
      if (word == "Pss:" && file >> value) kilobytes += value;
    }
  }
  return kilobytes * 1024;
}

ThreadTimes thread_times(pid_t pid) {
  ThreadTimes times;
  for (const pid_t member : family_of(pid)) {
    for (const pid_t thread : threads_of(member)) times[thread] = ticks_of(member, thread);
  }
  return times;
}

int busy_threads(const ThreadTimes& before, const ThreadTimes& after, double seconds) {
  const double least = kBusyShare * seconds * static_cast<double>(sysconf(_SC_CLK_TCK));
  int count = 0;
  for (const auto& [thread, ticks] : after) {
    const auto earlier = before.find(thread);
    const long since = earlier == before.end() ? 0 : earlier->second;
    if (static_cast<double>(ticks - since) >= least && ticks > since) ++count;
  }
  return count;
}

bool is_reference_blas(const std::string& path) {
  if (path.substr(path.rfind('/') + 1).rfind("libblas.so", 0) != 0) return false;
  for (const char* other : {"openblas", "mkl", "blis", "atlas"}) {
    if (path.find(other) != std::string::npos) return false;
  }
  return true;
}

std::optional<std::string> loaded_reference_blas(pid_t pid) {
  for (const pid_t member : family_of(pid)) {
    std::ifstream maps(fmt::format("/proc/{}/maps", member));
    for (std::string line; std::getline(maps, line);) {
      const auto path = line.find('/');
      if (path != std::string::npos && is_reference_blas(line.substr(path)))
        return line.substr(path);
    }
  }
  return {};
}

}  // namespace paceline::launcher
