#pragma once

// Tries the user's program out: runs it for a few seconds with one combination of ranks and
// threads, as `paceline run` would, and reads its step log (engine/telemetry/step_log.h).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/placement/training_advice.h"

namespace paceline::apps {

// A new temporary folder, removed with this value.
class TemporaryFolder {
 public:
  // Error(kSystem) if it cannot be made.
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "paceline-advise-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw system_error("making a folder " + path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Bytes of memory that a job may use here: the machine's, or the limit of a cgroup.
inline std::uint64_t usable_memory() {
  const launcher::MemoryCounters memory = launcher::read_memory_counters();
  return std::min(memory.machine_bytes, memory.limit.value_or(memory.machine_bytes));
}

// A signal arrived while something was being tried.
struct Interrupted {
  int signal;
};

// Blocks the signals that end a command, except those that are ignored. Returns their signalfd.
Fd block_ending_signals();

struct LauncherRunOptions {
  std::vector<std::string> command;  // of the program
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  std::string folder;   // for output and logs; exists, and is removed by the caller
  // For the program; NAME and VALUE.
  std::vector<std::pair<std::string, std::string>> variables;
};

// `paceline run` as a child of this process. Its output goes into a file, from which the reason of
// a failure is read.
//
// Thread safety: none.
class LauncherRun {
 public:
  // `signals`: of block_ending_signals(). Error(kSystem) when it cannot be started.
  LauncherRun(const LauncherRunOptions& options, const Fd& signals);
  // As stop().
  ~LauncherRun();
  LauncherRun(const LauncherRun&) = delete;
  LauncherRun& operator=(const LauncherRun&) = delete;

  pid_t pid() const { return pid_; }
  // Waits at most so long. True when the launcher has ended. Throws Interrupted.
  bool wait(std::chrono::milliseconds time) const;
  // Ends it if it still runs; its exit code.
  int stop();

  // The cause in the launcher's report (launcher/diagnosis/failure_report.h), else the program's
  // last line in it, else the report's first line. Without a report, the last line of the output.
  std::string last_words() const;
  // Whether a line of the output has these words.
  bool says(std::string_view words) const;

 private:
  std::string output_file() const { return folder_ + "/output"; }
  void start(const LauncherRunOptions& options);

  const std::string folder_;
  const Fd& signals_;
  pid_t pid_ = -1;
  Fd pidfd_;
  int exit_code_ = 0;
};

struct TrialOptions {
  std::vector<std::string> command;
  launcher::Combination combination;
  std::chrono::nanoseconds duration = std::chrono::seconds(5);   // of steps, after warming up
  std::chrono::nanoseconds patience = std::chrono::seconds(60);  // for the next step
  std::string folder;  // for logs; exists, and is removed by the caller
};

// `signals`: of block_ending_signals(); when one arrives the trial is stopped and Interrupted is
// thrown. What goes wrong with the program is in the trial's `problem`. Error(kSystem) when it
// cannot be started at all.
launcher::Trial run_trial(const TrialOptions& options, const Fd& signals);

}  // namespace paceline::apps
