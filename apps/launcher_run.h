#pragma once

// `paceline run` as a child of this process, for the commands that try the user's program out. Its
// output goes into a file, from which the reason of a failure is read.

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/fd.h"

namespace paceline::apps {

// A signal arrived while something was being tried.
struct Interrupted {
  int signal;
};

// Blocks the signals that end a command, but for those that are ignored. Their signalfd.
Fd block_ending_signals();

struct LauncherRunOptions {
  std::vector<std::string> command;  // of the program
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  std::string folder;   // for output and logs; exists, and is removed by the caller
  // For the program; NAME and VALUE.
  std::vector<std::pair<std::string, std::string>> variables;
};

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

  // Of the launcher's report (failure_report.h) the cause, else the program's last line, else its
  // first line, where the program wrote nothing or none of it ran.
  std::string last_words() const;
  // Whether the output has these words in a line.
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

}  // namespace paceline::apps
