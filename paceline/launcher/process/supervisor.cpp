#include "paceline/launcher/process/supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/process/descendants.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {
namespace {

// Passes the input typed on a terminal on to rank 0. A rank is not in the terminal's foreground
// process group, so it would be stopped if it read from the terminal itself. While this process is
// in the background, it does not read from the terminal either. No event tells a process that it is
// in the foreground again, so it checks from time to time.
class StdinRelay {
 public:
  // Does not own `terminal`. `to_rank` is the non-blocking writing end of rank 0's stdin.
  StdinRelay(int terminal, Fd to_rank) : terminal_(terminal), to_rank_(std::move(to_rank)) {}

  // The descriptor to poll now (-1: none), and the events to poll for.
  int poll_fd() const;
  short poll_events() const;
  // Whether the relay waits for this process to come to the foreground. If so, call poll_fd() again
  // soon.
  bool waits_for_foreground() const;
  // Call this when poll_fd() is ready.
  void pass_on();

 private:
  bool in_foreground() const;
  void close() { to_rank_.reset(); }

  int terminal_;
  Fd to_rank_;
  std::string pending_;
};

// At most PIPE_BUF, so that a non-blocking write accepts all bytes or none.
constexpr std::size_t kInputChunk = 4096;

int StdinRelay::poll_fd() const {
  if (!to_rank_) return -1;
  if (!pending_.empty()) return to_rank_.get();
  return in_foreground() ? terminal_ : -1;
}

bool StdinRelay::waits_for_foreground() const {
  return to_rank_ && pending_.empty() && !in_foreground();
}

// False for a terminal of another session, which is left to that session's shell. True for a
// terminal that was hung up, whose input is read to the end.
bool StdinRelay::in_foreground() const {
  const pid_t group = tcgetpgrp(terminal_);
  return group < 0 ? errno != ENOTTY : group == getpgrp();
}

short StdinRelay::poll_events() const { return pending_.empty() ? POLLIN : POLLOUT; }

void StdinRelay::pass_on() {
  if (pending_.empty()) {
    pending_.resize(kInputChunk);
    const ssize_t length = read_some(terminal_, std::as_writable_bytes(std::span(pending_)));
    pending_.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    if (length == 0 || (length < 0 && errno != EAGAIN)) return close();
  }
  if (pending_.empty()) return;
  const ssize_t written = write_some(to_rank_.get(), as_bytes(pending_));
  if (written >= 0) pending_.erase(0, static_cast<std::size_t>(written));
  if (written < 0 && errno != EAGAIN) close();
}

using namespace std::chrono_literals;

constexpr int kInterruptsBeforeForce = 3;
constexpr std::chrono::milliseconds kForegroundPause = 250ms;

sigset_t only(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

// Includes SIGTSTP, because only the supervisor is in the terminal's foreground process group and
// so receives a Ctrl-Z.
Fd make_supervisor_signal_fd() {
  std::vector<int> signals = outside_signals();
  if (!stays_ignored(SIGTSTP)) {
    const sigset_t stop = only(SIGTSTP);
    sigprocmask(SIG_BLOCK, &stop, nullptr);
    signals.push_back(SIGTSTP);
  }
  return make_signal_fd(signals);
}

class Supervisor {
 public:
  Supervisor(pid_t agent, Fd control, StdinRelay relay, Fd signals)
      : agent_(agent),
        pidfd_(open_pidfd(agent)),
        control_(std::move(control)),
        relay_(std::move(relay)),
        signals_(std::move(signals)) {}

  int wait();

 private:
  void pass_signals_on();
  void note_signals();
  void pass_on(unsigned char signal);
  void suspend();
  int finish();

  pid_t agent_;
  Fd pidfd_, control_;
  StdinRelay relay_;
  Fd signals_;
  int interrupts_ = 0;
  int stop_signal_ = 0;  // the first signal that asks the job to end; 0: none
};

int Supervisor::wait() {
  for (;;) {
    std::array<pollfd, 3> entries{pollfd{pidfd_.get(), POLLIN, 0},
                                  pollfd{signals_.get(), POLLIN, 0},
                                  pollfd{relay_.poll_fd(), relay_.poll_events(), 0}};
    const auto pause = relay_.waits_for_foreground() ? kForegroundPause : -1ms;
    if (poll_for(entries, pause) < 0) continue;
    if (entries[1].revents != 0) pass_signals_on();
    if (entries[2].revents != 0) relay_.pass_on();
    if (entries[0].revents != 0) return finish();
  }
}

void Supervisor::pass_signals_on() {
  signalfd_siginfo info;
  while (read_record(signals_.get(), info)) {
    const auto signal = static_cast<unsigned char>(info.ssi_signo);
    if (signal == SIGTSTP) {
      suspend();
      continue;
    }
    if (stop_signal_ == 0 && signal != SIGUSR1 && signal != SIGUSR2) stop_signal_ = signal;
    if (signal == SIGINT && ++interrupts_ >= kInterruptsBeforeForce) kill(agent_, SIGKILL);
    pass_on(signal);
  }
}

// Call this when the agent has ended, so that signals that arrived earlier are still taken into
// account.
void Supervisor::note_signals() {
  signalfd_siginfo info;
  while (read_record(signals_.get(), info)) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (stop_signal_ == 0 && std::ranges::find(kStopSignals, signal) != kStopSignals.end())
      stop_signal_ = signal;
  }
}

// Sends the signal to the agent. An agent that is already exiting no longer reads its pipe, so a
// failure to write is ignored. Waits at most 1 s if the agent does not read the pipe.
void Supervisor::pass_on(unsigned char signal) {
  write_whole(control_.get(), std::as_bytes(std::span(&signal, 1)), Deadline::after(1s));
}

// Stops the ranks, then this process; continues the ranks afterwards. If no shell could continue
// this process, the kernel does not stop it, and the ranks continue at once.
void Supervisor::suspend() {
  const sigset_t stop = only(SIGTSTP);
  pass_on(SIGTSTP);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // the pending SIGTSTP stops this process here
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  pass_on(SIGCONT);
}

int Supervisor::finish() {
  const int status = await_end(agent_);
  end_all_descendants(Deadline::after(5s));
  if (!WIFSIGNALED(status)) {
    const int code = WEXITSTATUS(status);
    note_signals();
    if (stop_signal_ != 0 && code == 128 + stop_signal_) end_by_signal(stop_signal_);
    // The ranks received the same signal, saved their state and ended before the agent received it.
    if (stop_signal_ != 0 && code == 0) {
      std::fprintf(stderr, "paceline: stopped by %s; all ranks have ended\n",
                   signal_name(stop_signal_).c_str());
      end_by_signal(stop_signal_);
    }
    return code;
  }
  if (WTERMSIG(status) == SIGKILL && interrupts_ >= kInterruptsBeforeForce) {
    std::fprintf(stderr, "paceline: received SIGINT %d times; all ranks were killed\n",
                 interrupts_);
    end_by_signal(SIGINT);
  }
  std::fprintf(stderr,
               "paceline: the launcher's agent (pid %d) was killed by %s; all ranks were ended\n",
               static_cast<int>(agent_), signal_name(WTERMSIG(status)).c_str());
  return 128 + WTERMSIG(status);
}

// Replaces this process's stdin with /dev/null. Then only rank 0 holds the input, so the writer of
// the input notices when no process reads it any more.
void let_go_of_input() {
  const Fd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
}

// Moves the agent to a process group of its own. Drops a SIGTSTP that is pending, because it was
// meant for the supervisor.
void leave_foreground() {
  setpgid(0, 0);
  if (stays_ignored(SIGTSTP)) return;
  signal(SIGTSTP, SIG_IGN);  // drops a pending SIGTSTP
  signal(SIGTSTP, SIG_DFL);
  const sigset_t stop = only(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);
}

[[noreturn]] void be_agent(const std::function<int(AgentChannel)>& agent, AgentChannel channel) {
  int status = 0;
  leave_foreground();
  adopt_orphans();
  try {
    status = agent(std::move(channel));
  } catch (const Error& error) {
    std::fprintf(stderr, "paceline run: %s\n", error.what());
    status = error.code() == ErrorCode::kInvalid ? kExitUsage : kExitEnvironment;
    end_all_descendants(Deadline::after(5s));
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "paceline run: %s\n", error.what());
    status = kExitEnvironment;
    end_all_descendants(Deadline::after(5s));
  } catch (const std::system_error& error) {  // thrown by std::jthread
    std::fprintf(stderr,
                 "paceline run: starting a thread: %s (see ulimit -u and the pids cgroup)\n",
                 error.code().message().c_str());
    status = kExitEnvironment;
    end_all_descendants(Deadline::after(5s));
  }
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

std::optional<int> AgentChannel::next_signal() const {
  std::byte signal{};
  const ssize_t length = read_some(control.get(), {&signal, 1});
  if (length < 0 && errno == EAGAIN) return {};
  return length == 1 ? std::to_integer<int>(signal) : 0;
}

int run_supervised(const std::function<int(AgentChannel)>& agent) {
  block_handled_signals();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTTOU, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a log at the file size limit then gets an error, not a signal
  adopt_orphans();
  const bool terminal = isatty(STDIN_FILENO) == 1;
  Pipe control = make_pipe();
  Pipe typed = terminal ? make_pipe() : Pipe{};
  for (const Fd* end : {&control.write_end, &typed.write_end}) {
    if (*end) fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  Fd stdin_fd = terminal ? std::move(typed.read_end) : Fd(fcntl(0, F_DUPFD_CLOEXEC, 3));
  Fd signals = make_supervisor_signal_fd();  // before there are ranks that a Ctrl-Z must stop
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0)
    throw system_error("starting the launcher's agent (see ulimit -u and the pids cgroup)");
  if (pid == 0) {
    control.write_end.reset();
    typed.write_end.reset();
    signals.reset();
    let_go_of_input();
    be_agent(agent, {std::move(control.read_end), std::move(stdin_fd)});
  }
  stdin_fd.reset();
  control.read_end.reset();
  if (!terminal) let_go_of_input();
  return Supervisor(pid, std::move(control.write_end),
                    StdinRelay(STDIN_FILENO, std::move(typed.write_end)), std::move(signals))
      .wait();
}

}  // namespace paceline::launcher
