#pragma once

// Starts a rank's process: finds the program along PATH, makes its environment, forks and executes
// it. Also the signals that the launcher handles itself, and the descriptors that bring them.

#include <array>
#include <csignal>
#include <map>
#include <span>
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

// The path to execute for `name` as typed: as in a shell, a name without '/' is looked for along
// `path`, the value of PATH. Throws ProgramError.
std::string find_program(const std::string& name, const std::string& path = own_path());

// The variables of a process.
using Environment = std::map<std::string, std::string>;

// This process's own variables.
Environment inherited_environment();

// The variables that `worker` adds to or changes in `inherited`.
Environment added_variables(const Environment& worker, const Environment& inherited);

// How to start one rank: in a process group of its own, on its own cpus, with its own streams, and
// with the kernel's promise that it dies with the process that started it. Arguments go to execve
// as they are; no shell is involved.
struct ProcessSpec {
  std::string path;                  // the program to execute
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
//
// Requires: called from the main thread, which must live as long as the rank, because the kernel's
// promise is for a thread.
Process start_process(const ProcessSpec& spec);

// Both ends of a pipe, close-on-exec.
struct Pipe {
  Fd read_end, write_end;
};
// Error(kSystem).
Pipe make_pipe();

// Each of these ends the job when the launcher gets it.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU};

// The signals that the launcher handles itself; blocked in it, and unblocked again in every rank. A
// signal of the terminal that was ignored at the start stays ignored: a user who starts the
// launcher with nohup, or in the background of a script, wants it to go on.
const std::vector<int>& handled_signals();
void block_handled_signals();
// The handled signals that come from outside: all but SIGCHLD.
std::vector<int> outside_signals();
bool stays_ignored(int signal);
// Whether the launcher passes it on to the ranks, and goes on itself.
bool is_for_ranks(int signal);

// A signalfd(2), non-blocking. Error(kSystem).
Fd make_signal_fd(std::span<const int> signals);

// pidfd_open(2). Error(kSystem).
Fd open_pidfd(pid_t pid);

}  // namespace paceline::launcher
