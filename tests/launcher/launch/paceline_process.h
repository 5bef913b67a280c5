#pragma once

// Runs the real command `paceline` for tests with given arguments, collects its output, and keeps
// everything under a deadline. TMPDIR is a fresh directory, so that a test sees what the command
// leaves there; it is removed at the end.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::launcher {

struct Outcome {
  int exit_code = -1;  // as a shell reports it
  int signal = 0;      // the signal that killed it; 0: it exited
  std::string out, err;
  std::chrono::duration<double> seconds{};
};

class PacelineProcess {
 public:
#ifdef __SANITIZE_THREAD__
  static constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(120);
#else
  static constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(60);
#endif
  using Variables = std::map<std::string, std::string>;

  // `command` is the program to run; by default the one of this build.
  explicit PacelineProcess(std::vector<std::string> arguments, Variables variables = {},
                           std::string command = PACELINE_COMMAND);
  PacelineProcess(const PacelineProcess&) = delete;
  PacelineProcess& operator=(const PacelineProcess&) = delete;
  ~PacelineProcess();

  pid_t pid() const { return pid_; }
  const std::string& temporary() const { return temporary_.path(); }
  void send(int signal) const;
  void write_stdin(const std::string& text);
  void close_stdin() { stdin_.reset(); }

  // Reads stdout until it has `count` lines that begin with `start`. Returns the rest of each of
  // these lines. Throws Error(kTimeout).
  std::vector<std::string> wait_for_lines(const std::string& start, std::size_t count);
  // Reads stderr until it contains the message. Returns false at its end, or after 20 s.
  bool wait_for(const harness::SaysMatcher& message);
  // Closes stdin and reads until the process ends. If it does not end within `limit`, kills it and
  // throws Error(kTimeout).
  Outcome wait(std::chrono::milliseconds limit = kLimit);

 private:
  bool read_some(int which, Deadline deadline);

  FreshDirectory temporary_;
  std::chrono::steady_clock::time_point started_;
  pid_t pid_ = -1;
  Fd stdin_, pipes_[2];
  std::string texts_[2];
};

// Starts the command and waits for it.
Outcome run_paceline(std::vector<std::string> arguments, PacelineProcess::Variables variables = {});

std::vector<std::string> lines_of(const std::string& text);

// The bytes of a file; empty if it does not exist.
std::string content_of(const std::string& path);

// Returns true when all of these processes have ended, false if they have not within `limit`.
bool all_gone(const std::vector<Fd>& pidfds, std::chrono::milliseconds limit);
std::vector<Fd> open_pidfds(const std::vector<std::string>& pids);

}  // namespace paceline::launcher
