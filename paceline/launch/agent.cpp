#include "paceline/launch/agent.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/deadline.h"
#include "paceline/core/error.h"
#include "paceline/launch/console.h"
#include "paceline/launch/descendants.h"
#include "paceline/launch/descriptor_limit.h"
#include "paceline/launch/job_flights.h"
#include "paceline/launch/job_services.h"
#include "paceline/launch/log_directory.h"
#include "paceline/launch/rank_process.h"
#include "paceline/launch/rank_watch.h"
#include "paceline/launch/running_jobs.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;

// After a failure the others cannot do useful work any more, so they get less time than after a
// Ctrl-C.
constexpr auto kLongestGraceAfterFailure = 5s;
constexpr auto kEndOfDescendants = 5s;
constexpr int kShownLines = 20;
constexpr int kEventsAtOnce = 256;

// What an epoll event is about, packed into its 64 bits.
enum class Source : std::uint32_t {
  kControl,
  kChildren,
  kRank,
  kStdout,
  kStderr,
  kConsole,
  kWatch
};
std::uint64_t tag(Source source, std::size_t index = 0) {
  return static_cast<std::uint64_t>(source) << 32 | index;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

Fd make_child_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

struct WatchedConsole {
  Console console;
  bool watched = false;  // epoll says when there is room again
};

class Agent {
 public:
  Agent(const LaunchPlan& plan, AgentChannel channel)
      : plan_(plan),
        channel_(std::move(channel)),
        logs_(plan.options.log_dir),
        flights_(inherited_environment(), logs_.problem().empty() ? logs_.path() : ""),
        services_(plan.options),
        children_(make_child_signal_fd()),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) throw system_error("epoll_create1()");
  }

  int run();

 private:
  void start_ranks();
  void mark_job();
  void watch_first_rank();
  void on_watch();
  std::unique_ptr<RankProcess> start_rank(int local_rank, const Environment& inherited,
                                          int null_fd);
  std::array<Console*, 2> console_of(int local_rank);
  void watch(int fd, Source source, std::size_t index = 0, std::uint32_t events = EPOLLIN);
  void loop();
  bool finished() const;
  void handle(const epoll_event& event);
  void on_control();
  void on_rank_end(std::size_t index);
  void on_output(std::size_t index, int stream);
  void reap_orphans();
  void hold_back_or_resume();
  void watch_consoles();
  void stop_ranks(int signal, std::chrono::nanoseconds grace);
  void kill_ranks();
  void report(RankProcess& culprit);
  void warn_about_logs();
  bool close_outputs();
  void conclude();
  int exit_code() const;
  void say(const std::string& text) { stderr_.console.write(text); }

  const LaunchPlan& plan_;
  AgentChannel channel_;
  WatchedConsole stdout_{Console(STDOUT_FILENO)};
  WatchedConsole stderr_{Console(STDERR_FILENO)};
  LogDirectory logs_;
  JobFlights flights_;
  JobServices services_;
  std::optional<RankWatch> watch_;
  Fd mark_;  // for the other jobs of this machine
  Fd children_;
  Fd epoll_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  int num_running_ = 0;
  bool orphans_may_wait_ = false;
  bool abandoned_ = false;  // the supervisor is gone
  bool warned_about_logs_ = false;
  bool concluded_ = false;  // everything has been said
  int stop_signal_ = 0;     // the first signal that ended the job
  bool stopping_ = false;
  std::optional<Deadline> kill_at_;
  std::optional<RankEnd> culprit_;
  std::vector<RankEnd> followers_;
};

int Agent::run() {
  require_descriptors(plan_.options.num_local_ranks);
  watch(channel_.control.get(), Source::kControl);
  watch(children_.get(), Source::kChildren);
  start_ranks();
  services_.start_store();
  mark_job();
  watch_first_rank();
  warn_about_logs();
  loop();
  if (abandoned_) end_all_descendants(Deadline::after(kEndOfDescendants));
  return exit_code();
}

void Agent::start_ranks() {
  const Environment inherited = inherited_environment();
  const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < plan_.options.num_local_ranks; ++i) {
    ranks_.push_back(start_rank(i, inherited, null_fd.get()));
    ++num_running_;
  }
  channel_.stdin_fd.reset();
}

void Agent::mark_job() {
  int num_threads = 0;
  for (const RankPlacement& rank : plan_.placement.ranks) num_threads += rank.num_threads;
  mark_ = mark_running_job(plan_.options.num_local_ranks, num_threads);
}

// One rank stands for all: they run the same program.
void Agent::watch_first_rank() {
  const RankProcess& first = *ranks_.front();
  watch_.emplace(first.rank(), first.process().pid, plan_.placement.ranks.front());
  watch(watch_->timer(), Source::kWatch);
}

void Agent::on_watch() {
  if (!watch_) return;
  if (!ranks_.front()->running()) return watch_.reset();
  for (const Warning& warning : watch_->look()) {
    say(fmt::format("paceline: warning: {}\n", to_text(warning)));
  }
}

std::unique_ptr<RankProcess> Agent::start_rank(int local_rank, const Environment& inherited,
                                               int null_fd) {
  const LaunchOptions& options = plan_.options;
  const int rank = options.rank_of(local_rank);
  const Fd secret = services_.make_secret_fd();
  JobAddresses addresses = services_.addresses();
  addresses.secret_fd = secret.get();
  ProcessSpec spec;
  spec.path = plan_.program_path;
  spec.command = options.command;
  spec.environment = worker_environment(inherited, options, local_rank, plan_.placement, addresses);
  flights_.add_variables(spec.environment);
  if (plan_.placement.bound) {
    spec.cpus = plan_.placement.ranks[local_rank].cpus;
    spec.numa_nodes = plan_.placement.ranks[local_rank].numa_nodes;
  }
  spec.stdin_fd = rank == 0 ? channel_.stdin_fd.get() : null_fd;
  spec.inherited_fd = secret.get();
  const std::string prefix = options.prefix_lines ? fmt::format("[{}] ", rank) : "";
  auto output = std::make_unique<RankOutput>(logs_.open_log(rank), console_of(local_rank), prefix);
  auto process = std::make_unique<RankProcess>(rank, std::move(spec), std::move(output));
  const auto index = static_cast<std::size_t>(local_rank);
  watch(process->process().pidfd.get(), Source::kRank, index);
  watch(process->output().pipe(0), Source::kStdout, index);
  watch(process->output().pipe(1), Source::kStderr, index);
  return process;
}

std::array<Console*, 2> Agent::console_of(int local_rank) {
  const ConsoleStreams& shown = plan_.options.console[local_rank];
  return {shown.out ? &stdout_.console : nullptr, shown.err ? &stderr_.console : nullptr};
}

void Agent::watch(int fd, Source source, std::size_t index, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = tag(source, index)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw system_error("epoll_ctl()");
}

bool Agent::finished() const {
  return abandoned_ || (concluded_ && stdout_.console.empty() && stderr_.console.empty());
}

void Agent::loop() {
  std::array<epoll_event, kEventsAtOnce> events;
  while (!finished()) {
    const int timeout = kill_at_ ? kill_at_->poll_timeout_ms() : -1;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout);
    for (int i = 0; i < count; ++i) handle(events[i]);
    if (orphans_may_wait_) reap_orphans();
    if (kill_at_ && kill_at_->expired()) kill_ranks();
    warn_about_logs();
    if (num_running_ == 0 && !concluded_ && close_outputs()) conclude();
    hold_back_or_resume();
    watch_consoles();
  }
}

void Agent::handle(const epoll_event& event) {
  const auto index = static_cast<std::size_t>(event.data.u64 & 0xffffffff);
  switch (static_cast<Source>(event.data.u64 >> 32)) {
    case Source::kControl:
      return on_control();
    case Source::kChildren:
      orphans_may_wait_ = true;
      return;
    case Source::kRank:
      return on_rank_end(index);
    case Source::kStdout:
      return on_output(index, 0);
    case Source::kStderr:
      return on_output(index, 1);
    case Source::kWatch:
      return on_watch();
    case Source::kConsole:
      stdout_.console.flush();
      stderr_.console.flush();
      return;
  }
}

void Agent::on_control() {
  unsigned char signal = 0;
  if (read(channel_.control.get(), &signal, 1) != 1) {
    abandoned_ = true;
    return;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    for (const auto& rank : ranks_) rank->send(signal);
  } else if (stop_signal_ == 0) {
    stop_signal_ = signal;
    stop_ranks(signal, plan_.options.shutdown_timeout);
  } else if (signal == SIGINT) {
    kill_ranks();
    if (num_running_ == 0) abandoned_ = true;  // nobody reads what is left to print
  }
}

void Agent::on_rank_end(std::size_t index) {
  RankProcess& rank = *ranks_[index];
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, rank.process().pidfd.get(), nullptr);
  const RankEnd end = rank.collect();
  --num_running_;
  rank.output().drain();
  if (!end.failed()) return;
  if (culprit_ || stop_signal_ != 0) {
    followers_.push_back(end);
    return;
  }
  culprit_ = end;
  report(rank);
  const std::chrono::nanoseconds grace = kLongestGraceAfterFailure;
  stop_ranks(SIGTERM, std::min(grace, plan_.options.shutdown_timeout));
}

void Agent::on_output(std::size_t index, int stream) { ranks_[index]->output().read_some(stream); }

// The orphans of ranks became children of this process; a rank itself is left to on_rank_end, which
// keeps the order of deaths.
void Agent::reap_orphans() {
  signalfd_siginfo info;
  while (read(children_.get(), &info, sizeof info) == sizeof info) {
  }
  orphans_may_wait_ = false;
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    for (const auto& rank : ranks_) {
      if (!rank->running() || rank->process().pid != ended.si_pid) continue;
      orphans_may_wait_ = true;  // look again once its pidfd has been seen
      return;
    }
    waitpid(ended.si_pid, nullptr, 0);
  }
}

// A rank whose console is full is not read; a console with something left is watched for room.
void Agent::hold_back_or_resume() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankOutput& output = ranks_[i]->output();
    for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
      if (!output.is_open(stream) || !output.hold_changed(stream)) continue;
      epoll_event event{.events = output.is_held_up(stream) ? 0U : EPOLLIN,
                        .data = {.u64 = tag(stream == 0 ? Source::kStdout : Source::kStderr, i)}};
      epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, output.pipe(stream), &event);
    }
  }
}

void Agent::watch_consoles() {
  for (WatchedConsole* watched : {&stdout_, &stderr_}) {
    const bool wanted = !watched->console.empty();
    if (wanted == watched->watched) continue;
    watched->watched = wanted;
    epoll_event event{.events = EPOLLOUT, .data = {.u64 = tag(Source::kConsole)}};
    epoll_ctl(epoll_.get(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, watched->console.fd(), &event);
  }
}

void Agent::stop_ranks(int signal, std::chrono::nanoseconds grace) {
  flights_.read();  // before the ranks leave where they are
  for (const auto& rank : ranks_) {
    rank->send(signal);
    rank->send(SIGCONT);  // a stopped process acts on nothing but SIGKILL
  }
  if (!stopping_) kill_at_ = Deadline::after(grace);
  stopping_ = true;
}

void Agent::kill_ranks() {
  kill_at_.reset();
  for (const auto& rank : ranks_) rank->send(SIGKILL);
}

void Agent::report(RankProcess& culprit) {
  FailureContext context{host_name(), culprit.output().last_lines(kShownLines),
                         logs_.problem().empty() ? logs_.path_of(culprit.rank()) : ""};
  say(failure_report(*culprit.end(), context));
}

void Agent::warn_about_logs() {
  if (warned_about_logs_) return;
  std::string problem = logs_.problem();
  for (const auto& rank : ranks_) {
    const std::string& reason = rank->output().log_problem();
    if (problem.empty() && !reason.empty()) {
      problem = fmt::format("{} is incomplete: {}", logs_.path_of(rank->rank()), reason);
    }
  }
  if (problem.empty()) return;
  warned_about_logs_ = true;
  say(fmt::format("paceline: warning: {}; the job goes on\n", problem));
}

// All ranks have ended. What left their process groups goes too, and with it the last holders of
// the pipes. False while a console still has to take something.
bool Agent::close_outputs() {
  end_all_descendants(Deadline::after(kEndOfDescendants));
  bool all_closed = true;
  for (const auto& rank : ranks_) {
    rank->output().drain();
    for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
      if (!rank->output().is_held_up(stream)) rank->output().close(stream);
      all_closed = all_closed && !rank->output().is_open(stream);
    }
  }
  return all_closed;
}

void Agent::conclude() {
  concluded_ = true;
  if (culprit_) {
    say(followers_summary(followers_));
    say(flights_.text(false));
  } else if (stop_signal_ != 0) {
    say(fmt::format("paceline: stopped by {}; all ranks have ended{}\n", signal_name(stop_signal_),
                    logs_.problem().empty() ? fmt::format(" (logs: {})", logs_.path()) : ""));
    say(flights_.text(true));
  } else {
    std::vector<int> own;
    for (const auto& rank : ranks_) own.push_back(rank->rank());
    flights_.remove(own);
    logs_.remove_if_temporary();
  }
}

int Agent::exit_code() const {
  if (culprit_) return culprit_->status();
  if (stop_signal_ != 0) return 128 + stop_signal_;
  return abandoned_ ? 128 + SIGKILL : 0;
}

}  // namespace

int run_agent(const LaunchPlan& plan, AgentChannel channel) {
  return Agent(plan, std::move(channel)).run();
}

}  // namespace paceline::launch
