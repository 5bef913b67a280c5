#include "paceline/launch/agent.h"

#include <csignal>
#include <memory>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/error.h"
#include "paceline/core/exit_code.h"
#include "paceline/launch/consoles.h"
#include "paceline/launch/descendants.h"
#include "paceline/launch/descriptor_limit.h"
#include "paceline/launch/event_loop.h"
#include "paceline/launch/generation.h"
#include "paceline/launch/job_watch.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndOfDescendants = 5s;

Fd make_child_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  Fd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw system_error("signalfd()");
  return fd;
}

class Agent {
 public:
  Agent(const LaunchPlan& plan, AgentChannel channel)
      : plan_(plan),
        channel_(std::move(channel)),
        consoles_(loop_, plan.options.part ? plan.options.part->notices_fd : -1),
        logs_(plan.options.log_dir),
        flights_(inherited_environment(), logs_.problem().empty() ? logs_.path() : ""),
        timeline_(plan.options.timeline, logs_.problem().empty() ? logs_.path() : ""),
        services_(plan.options),
        watch_(loop_, plan, {logs_.problem().empty() ? logs_.path() : "", flights_.directory()},
               {[this](const std::string& text) { consoles_.say(text); },
                [this](int rank) { generation_->kill_rank(rank); }}),
        children_(make_child_signal_fd()) {}

  int run();

 private:
  void start();
  void loop();
  bool finished() const { return abandoned_ || (concluded_ && consoles_.empty()); }
  void on_control();
  void reap_orphans();
  void warn_about_logs();
  void conclude();
  void remove_records();
  int exit_code() const;

  const LaunchPlan& plan_;
  AgentChannel channel_;
  EventLoop loop_;
  Consoles consoles_;
  LogDirectory logs_;
  JobFlights flights_;
  const JobMemory memory_;
  const JobTimeline timeline_;
  JobServices services_;
  JobWatch watch_;
  Fd children_;
  std::unique_ptr<Generation> generation_;
  bool orphans_may_wait_ = false;
  bool abandoned_ = false;  // the supervisor is gone
  bool warned_about_logs_ = false;
  bool concluded_ = false;  // everything has been said
  int stop_signal_ = 0;     // the first signal that ended the job
};

int Agent::run() {
  require_descriptors(plan_.options.num_local_ranks);
  loop_.watch(channel_.control.get(), [this] { on_control(); });
  loop_.watch(children_.get(), [this] { orphans_may_wait_ = true; });
  start();
  warn_about_logs();
  loop();
  if (abandoned_) end_all_descendants(Deadline::after(kEndOfDescendants));
  if (abandoned_ && !concluded_ && stop_signal_ == 0) {
    timeline_.finish();
    remove_records();  // nobody is left to be told of the logs
  }
  return exit_code();
}

void Agent::start() {
  generation_ = std::make_unique<Generation>(
      GenerationContext{plan_, loop_, consoles_, logs_, flights_, memory_, timeline_, watch_},
      plan_.options.place(), services_, channel_.stdin_fd.get());
  channel_.stdin_fd.reset();
  services_.start_store();
}

void Agent::loop() {
  while (!finished()) {
    loop_.turn(generation_->next_deadline());
    if (orphans_may_wait_) reap_orphans();
    generation_->tend();
    warn_about_logs();
    if (generation_->over() && !concluded_) conclude();
    consoles_.watch_for_room();
  }
}

void Agent::on_control() {
  unsigned char signal = 0;
  if (read(channel_.control.get(), &signal, 1) != 1) {
    abandoned_ = true;
    return;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    generation_->send(signal);
  } else if (stop_signal_ == 0) {
    stop_signal_ = signal;
    generation_->stop(signal, plan_.options.shutdown_timeout);
  } else if (signal == SIGINT) {
    generation_->kill();
    // Nobody reads what is left to print.
    if (generation_->num_running() == 0) abandoned_ = true;
  }
}

// The orphans of ranks became children of this process; a rank itself is left to its generation,
// which keeps the order of deaths.
void Agent::reap_orphans() {
  signalfd_siginfo info;
  while (read(children_.get(), &info, sizeof info) == sizeof info) {
  }
  orphans_may_wait_ = false;
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0) return;
    if (generation_->owns(ended.si_pid)) {
      orphans_may_wait_ = true;  // look again once its pidfd has been seen
      return;
    }
    waitpid(ended.si_pid, nullptr, 0);
  }
}

void Agent::warn_about_logs() {
  if (warned_about_logs_) return;
  const std::string problem =
      logs_.problem().empty() ? generation_->log_problem() : logs_.problem();
  if (problem.empty()) return;
  warned_about_logs_ = true;
  consoles_.say(fmt::format("paceline: warning: {}; the job goes on\n", problem));
}

void Agent::conclude() {
  concluded_ = true;
  consoles_.say(timeline_.finish());
  if (generation_->culprit()) {
    consoles_.say(followers_summary(generation_->followers()));
    consoles_.say(flights_.text(false));
  } else if (generation_->stopped_as_agreed()) {
    consoles_.say(
        fmt::format("paceline: all ranks stopped as agreed; start the job again to continue (exit "
                    "code {})\n",
                    kStoppedAsAgreed));
    remove_records();
  } else if (stop_signal_ != 0) {
    consoles_.say(
        fmt::format("paceline: stopped by {}; all ranks have ended{}\n", signal_name(stop_signal_),
                    logs_.problem().empty() ? fmt::format(" (logs: {})", logs_.path()) : ""));
    consoles_.say(flights_.text(true));
  } else {
    remove_records();
  }
}

void Agent::remove_records() {
  flights_.remove(generation_->ranks());
  logs_.remove_if_temporary();
}

int Agent::exit_code() const {
  if (generation_->culprit()) return generation_->culprit()->status();
  if (generation_->stopped_as_agreed()) return kStoppedAsAgreed;
  if (stop_signal_ != 0) return 128 + stop_signal_;
  return abandoned_ ? 128 + SIGKILL : 0;
}

}  // namespace

int run_agent(const LaunchPlan& plan, AgentChannel channel) {
  return Agent(plan, std::move(channel)).run();
}

}  // namespace paceline::launch
