#include "apps/launcher_run.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/engine/core/io.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_end.h"

namespace paceline::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto kEnd = 20s;  // after SIGTERM; the launcher ends its ranks after 2 s

std::vector<std::string> launcher_command(const LauncherRunOptions& options) {
  std::vector<std::string> command = {"paceline",
                                      "run",
                                      fmt::format("--nproc-per-node={}", options.num_ranks),
                                      fmt::format("--threads-per-rank={}", options.num_threads),
                                      "--log-dir=" + options.folder,
                                      "--shutdown-timeout=2",
                                      "--"};
  command.insert(command.end(), options.command.begin(), options.command.end());
  return command;
}

}  // namespace

Fd block_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!launcher::stays_ignored(signal)) sigaddset(&set, signal);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

LauncherRun::LauncherRun(const LauncherRunOptions& options, const Fd& signals)
    : folder_(options.folder), signals_(signals) {
  start(options);
}

LauncherRun::~LauncherRun() { stop(); }

void LauncherRun::start(const LauncherRunOptions& options) {
  std::vector<std::string> command = launcher_command(options);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd output(open(output_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!output) throw system_error("writing " + output_file());
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw system_error("starting paceline run");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);  // a Ctrl-C is passed on by this process
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(null_fd.get(), STDIN_FILENO);
    dup2(output.get(), STDOUT_FILENO);
    dup2(output.get(), STDERR_FILENO);
    for (const auto& [name, value] : options.variables) setenv(name.c_str(), value.c_str(), 1);
    execv("/proc/self/exe", argv.data());
    _exit(kExitNotFound);
  }
  pidfd_ = launcher::open_pidfd(pid_);
}

bool LauncherRun::wait(std::chrono::milliseconds time) const {
  pollfd fds[] = {{pidfd_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  poll_for(fds, time);
  signalfd_siginfo info;
  if (fds[1].revents != 0 && read_record(signals_.get(), info))
    throw Interrupted{static_cast<int>(info.ssi_signo)};
  return fds[0].revents != 0;
}

int LauncherRun::stop() {
  if (pid_ < 0) return exit_code_;
  kill(pid_, SIGTERM);
  const Deadline end = Deadline::after(kEnd);
  if (!await(pidfd_.get(), POLLIN, end)) kill(pid_, SIGKILL);  // its agent ends the ranks
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string LauncherRun::last_words() const {
  constexpr std::string_view kCause = "  cause: ", kOwn = "  | ";
  std::ifstream file(output_file());
  std::string said, cause, own, last;
  for (std::string line; std::getline(file, line);) {
    if (said.empty() && line.starts_with("paceline") &&
        line.find("warning:") == std::string::npos) {
      said = line;
    }
    if (!said.empty() && line.starts_with(kCause)) cause = line.substr(kCause.size());
    if (!said.empty() && line.starts_with(kOwn) && line != kOwn) own = line.substr(kOwn.size());
    if (!line.empty()) last = line;
  }
  if (!cause.empty() || !own.empty()) return cause.empty() ? own : cause;
  return said.empty() ? last : said;
}

bool LauncherRun::says(std::string_view words) const {
  std::ifstream file(output_file());
  for (std::string line; std::getline(file, line);) {
    if (line.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace paceline::apps
