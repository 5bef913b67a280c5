#pragma once

// Tries out the user's program: runs it with `paceline run` for a few seconds, with one combination
// of ranks and threads, and reads its step log (engine/telemetry/step_log.h).

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
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/placement/training_advice.h"

namespace paceline::apps {

// A new temporary folder, which is removed with this object.
class TemporaryFolder {
 public:
  // Error(kSystem) if the folder cannot be made.
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

// The bytes of memory that a job may use on this machine: the machine's whole memory, or the limit
// of its cgroup if that is smaller.
inline std::uint64_t usable_memory() {
  const launcher::MemoryCounters memory = launcher::read_memory_counters();
  return std::min(memory.machine_bytes, memory.limit.value_or(memory.machine_bytes));
}

// Thrown when a signal arrives during a trial.
struct Interrupted {
  int signal;
};

// Blocks the signals that end a command, except those that are ignored. Returns a signalfd for
// them.
Fd block_ending_signals();

struct LauncherRunOptions {
  std::vector<std::string> command;  // the program and its arguments
  int num_ranks = 1;
  int num_threads = 1;  // computing threads of each rank
  std::string folder;   // for output and logs; the caller creates and removes it
  // Variables for the program: pairs of name and value.
  std::vector<std::pair<std::string, std::string>> variables;
};

// `paceline run` as a child of this process. Its output is written to a file, from which the reason
// for a failure is read.
//
// Thread safety: none.
class LauncherRun {
 public:
  // `signals`: from block_ending_signals(). Error(kSystem) if `paceline run` cannot be started.
  LauncherRun(const LauncherRunOptions& options, const Fd& signals);
  // Calls stop().
  ~LauncherRun();
  LauncherRun(const LauncherRun&) = delete;
  LauncherRun& operator=(const LauncherRun&) = delete;

  pid_t pid() const { return pid_; }
  // Waits at most for this time. Returns true if the launcher has ended. Throws Interrupted.
  bool wait(std::chrono::milliseconds time) const;
  // Ends the launcher if it still runs. Returns its exit code.
  int stop();

  // The reason for a failure: the cause in the launcher's report
  // (launcher/diagnosis/failure_report.h), or else the last line of the program's output in that
  // report, or else the report's first line. Without a report, the last line of the output.
  std::string failure_reason() const;
  // Whether a line of the output contains these words.
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
  std::chrono::nanoseconds duration =
      std::chrono::seconds(5);  // of the measured steps, after the warm-up
  std::chrono::nanoseconds patience = std::chrono::seconds(60);  // longest wait for the next step
  std::string folder;  // for logs; the caller creates and removes it
};

// `signals`: from block_ending_signals(). When a signal arrives, stops the trial and throws
// Interrupted. A failure of the program is reported in the trial's `problem`. Error(kSystem) if
// `paceline run` cannot be started at all.
launcher::Trial run_trial(const TrialOptions& options, const Fd& signals);

}  // namespace paceline::apps
