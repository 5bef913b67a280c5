#pragma once

// The process of a rank, from its start to its end: prepares its environment, forks and executes
// the program (launcher/process/program_file.h finds it). Also declares the signals that the
// launcher handles itself, and their descriptors; the end of a rank as a value; a check whether a
// signal is ending a process at this moment; and a function that ends this process by a signal.

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
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
// Whether the launcher only passes the signal on to the ranks, and does not end the job.
bool is_for_ranks(int signal);

// Makes a non-blocking signalfd(2) for the signals. Error(kSystem).
Fd make_signal_fd(std::span<const int> signals);

// Opens a pidfd for the process (pidfd_open(2)). Error(kSystem).
Fd open_pidfd(pid_t pid);

struct RankEnd {
  int rank = -1;
  pid_t pid = -1;
  int exit_code = 0;
  int signal = 0;                              // 0: no signal ended the process
  std::chrono::duration<double> after{};       // how long the process ran
  std::chrono::steady_clock::time_point at{};  // when the process ended
  std::uint64_t peak_bytes = 0;                // resident memory; 0: not known

  // Also true for an agreed stop.
  bool failed() const { return exit_code != 0 || signal != 0; }
  bool stopped_as_agreed() const { return signal == 0 && exit_code == kStoppedAsAgreed; }
  // The status that a shell would report: the exit code, or 128 + signal.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// Waits for a child, even if signals interrupt the call. Returns the status word of waitpid().
int await_end(pid_t child);
// The status that a shell would report for a status word: the exit code, or 128 + signal.
int shell_status(int wait_status);
// Makes a RankEnd from a status word.
RankEnd rank_end(int rank, pid_t pid, int wait_status, std::chrono::duration<double> after);

// The name of a signal: "SIGKILL", "SIGTERM", ...
std::string signal_name(int signal);

// A text such as "exit code 3" or "killed by SIGSEGV".
std::string describe(const RankEnd& end);

// Flushes stdio, then ends this process by `signal`, without a core file. If the kernel does not
// let the signal end it, because it is the first process of a container, exits with 128 + `signal`.
//
// A process that caught a signal should end by that signal, because parents distinguish this from
// an exit code. After Ctrl-C, the loop of a shell script goes on if the command exited, with any
// exit code, but ends if SIGINT killed the command. make removes an unfinished target if a signal
// killed its command. For systemd a process that SIGTERM killed has stopped cleanly, but exit code
// 143 is a failure.
[[noreturn]] void end_by_signal(int signal);

// Whether a signal has ended the child `child`, or is ending it. Requires: the child has not been
// waited for. If the child is about to end, waits for that until the deadline; otherwise returns at
// once.
//
// The kernel closes the connections of a dying process before it reports the process as ended. So a
// peer that exits because of the closed connection may be seen to end first.
bool died_of_signal(const Process& child, Deadline deadline);

}  // namespace paceline::launcher
