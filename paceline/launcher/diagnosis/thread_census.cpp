#include "paceline/launcher/diagnosis/thread_census.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/process/descendants.h"

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
  // The thread's name is in parentheses and may contain any character. After the last parenthesis,
  // user and system time are the 12th and 13th words.
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
    const pid_t member = family[i];  // a copy: the vector grows
    const std::vector<pid_t> children = children_of(member);
    family.insert(family.end(), children.begin(), children.end());
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
    const long earlier_ticks = earlier == before.end() ? 0 : earlier->second;
    if (static_cast<double>(ticks - earlier_ticks) >= least && ticks > earlier_ticks) ++count;
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

namespace {

using namespace std::chrono_literals;

// The pauses before each look. Looks 1 and 2 enclose one window of 2 s, looks 3 and 4 another one.
constexpr std::array<std::chrono::nanoseconds, 4> kPauses = {3s, 2s, 15s, 2s};

}  // namespace

RankWatch::RankWatch(int rank, pid_t pid, RankPlacement placement)
    : rank_(rank),
      pid_(pid),
      placement_(std::move(placement)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!timer_) throw system_error("timerfd_create()");
  wait_for(kPauses[0]);
}

void RankWatch::wait_for(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const itimerspec spec{.it_interval = {}, .it_value = {seconds.count(), (time - seconds).count()}};
  timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

std::vector<Warning> RankWatch::look() {
  std::uint64_t expirations = 0;
  if (!read_record(timer_.get(), expirations)) return {};
  const auto now = std::chrono::steady_clock::now();
  const ThreadTimes times = thread_times(pid_);
  ++num_looks_;
  std::vector<Warning> warnings;
  if (num_looks_ % 2 == 0) {
    const double seconds = std::chrono::duration<double>(now - before_at_).count();
    warnings = judge(busy_threads(before_, times, seconds));
  }
  before_ = times;
  before_at_ = now;
  const auto next = static_cast<std::size_t>(num_looks_);
  if (next < kPauses.size()) wait_for(kPauses[next]);
  return warnings;
}

std::vector<Warning> RankWatch::judge(int busy) {
  std::vector<Warning> warnings;
  if (!said_blas_) {
    const auto path = loaded_reference_blas(pid_);
    said_blas_ = path.has_value();
    if (path) {
      warnings.push_back({fmt::format("rank {} has loaded the reference BLAS, {}", rank_, *path),
                          "this BLAS uses one thread, whatever OMP_NUM_THREADS is, and takes about "
                          "20 times as long as OpenBLAS for matrix products",
                          "apt-get install libopenblas0-pthread"});
    }
  }
  // Loader, communication and progress threads are expected besides the threads that compute.
  const int expected = 2 * placement_.num_threads + 1;
  const int cpus = static_cast<int>(placement_.cpus.size());
  if (!said_threads_ && busy > std::max(expected, cpus)) {
    said_threads_ = true;
    warnings.push_back(
        {fmt::format("rank {} keeps {} threads busy on {}, and was told to compute with {}", rank_,
                     busy, counted(cpus, "cpu"), placement_.num_threads),
         fmt::format("each runs about {:.0f}% of the time, and threads that wait for each other "
                     "lose more time",
                     100.0 * cpus / busy),
         "a library that does not follow OMP_NUM_THREADS needs its own setting; so do loader "
         "threads"});
  }
  return warnings;
}

}  // namespace paceline::launcher
