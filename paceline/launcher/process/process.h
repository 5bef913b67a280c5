#pragma once

// Starts a rank's process: prepares its environment, forks and executes the program
// (launcher/process/program_file.h finds it). Also declares the signals that the launcher handles
// itself, and their descriptors.

#include <array>
#include <csignal>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

// The environment variables of a process.
using Environment = std::map<std::string, std::string>;

// The environment variables of this process.
Environment inherited_environment();

// The variables that `worker` adds to or changes in `inherited`.
Environment added_variables(const Environment& worker, const Environment& inherited);

// How to start one rank: in a process group of its own, on its own cpus and with its own streams.
// The kernel kills the rank when the thread that started it ends. Arguments are passed to execve()
// unchanged; no shell is involved.
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

// Error(kSystem) when no process can be made. If the program turns out not to be executable, the
// new process writes the reason to its stderr and exits with 126 or 127.
//
// Requires: called from the main thread, which must live as long as the rank: the kernel kills the
// rank when the thread that started it ends.
Process start_process(const ProcessSpec& spec);

// Both ends of a pipe, close-on-exec.
struct Pipe {
  Fd read_end, write_end;
};
// Error(kSystem).
Pipe make_pipe();

// Each of these signals ends the job when the launcher receives it.
inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU};

// The signals that the launcher handles itself. They are blocked in the launcher and unblocked
// again in every rank. A signal of the terminal that was ignored at the start stays ignored,
// because a user who starts the launcher with nohup, or in the background of a script, wants it to
// continue.
const std::vector<int>& handled_signals();
void block_handled_signals();
// The handled signals that other processes send: all except SIGCHLD.
std::vector<int> outside_signals();
bool stays_ignored(int signal);
// Whether the launcher passes the signal on to the ranks and continues to run itself.
bool is_for_ranks(int signal);

// Makes a non-blocking signalfd(2) for the signals. Error(kSystem).
Fd make_signal_fd(std::span<const int> signals);

// Opens a pidfd for the process (pidfd_open(2)). Error(kSystem).
Fd open_pidfd(pid_t pid);

}  // namespace paceline::launcher
