#pragma once

// Finds the program to start before anything is started, as a shell would: a name without '/' along
// PATH.

#include <array>
#include <csignal>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// The program cannot be started. exit_code() is the shell's: 127 not found, 126 found but not
// executable.
class ProgramError : public std::runtime_error {
 public:
  ProgramError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The value of PATH, or "".
std::string own_path();

// The path to execute for `name` as typed; `path` is a value of PATH. Throws ProgramError.
std::string find_program(const std::string& name, const std::string& path = own_path());

// The variables of a process, as a value: those that this one inherited, and what others are
// started with.

using Environment = std::map<std::string, std::string>;

// This process's own variables.
Environment inherited_environment();

// The variables that `worker` adds to or changes in `inherited`.
Environment added_variables(const Environment& worker, const Environment& inherited);

// Starts one rank: its own process group, its own cpus, its own streams, and a promise of the
// kernel that it dies with the process that started it. Arguments go to execve as they are; no
// shell is involved.
//
// Requires: called from the main thread, which must live as long as the rank (the kernel's promise
// is per thread), before other threads exist.

struct ProcessSpec {
  std::string path;                  // what to execute
  std::vector<std::string> command;  // argv
  Environment environment;
  std::vector<int> cpus;        // empty: not bound
  std::vector<int> numa_nodes;  // empty: memory from anywhere
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
  std::vector<int> inherited;  // kept open across exec, under the same numbers
};

struct Process {
  pid_t pid = -1;
  Fd pidfd;  // readable once the process has ended
};

// Error(kSystem) when no process can be made. When the program cannot be executed after all, the
// process writes the reason to its stderr and exits with 126 or 127.
Process start_process(const ProcessSpec& spec);

// Each of these ends the job when the launcher gets it.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU};

// The signals the launcher handles itself; blocked in it, and unblocked again in every rank. Of
// those that come from a terminal, one that was ignored at the start stays ignored: the one that
// started the launcher with nohup, or in the background of a script, wants it to go on.
const std::vector<int>& handled_signals();
void block_handled_signals();
bool stays_ignored(int signal);

// pidfd_open(2). Error(kSystem).
Fd open_pidfd(pid_t pid);

}  // namespace paceline::launcher
