// How a job of --hosts ends, and how it loses hosts and starts them again: failures, lost
// connections, stopping, the exit code, returning hosts.

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/launcher/hosts/hosts_agent.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

namespace {

using namespace std::chrono_literals;

constexpr int kExitOfSsh = 255;
constexpr std::chrono::nanoseconds kUsualSilence = 2 * kAliveInterval;
constexpr std::chrono::nanoseconds kLongestGraceOfHosts = 5s;
// How long a host may take to report that it has ended its ranks.
constexpr std::chrono::nanoseconds kTimeOfHostsToAnswer = 5s;

}  // namespace

void HostsAgent::on_end(std::size_t index) {
  HostState& host = hosts_[index];
  for (int stream : {0, 1}) {
    std::string rest;
    if (host.lines[stream]) host.lines[stream]->finish(rest);
    (stream == 0 ? consoles_.out() : consoles_.err()).write(rest);
  }
  if (host.exit_code == 0 || host.exit_code == kStoppedAsAgreed || over_ || stopping()) return;
  if (host.lost()) return on_failed_return(index);
  // A user who stops the agent on a host needs that host for something else, so it is not started
  // again.
  if (host.exit_code == 128 + SIGTERM || host.exit_code == 128 + SIGINT) host.comeback.give_up();
  lose(index, host.exit_code
                  ? fmt::format("{} ended with exit code {}", named(host), *host.exit_code)
                  : end_of_connection(host));
}

void HostsAgent::on_over(int exit_code) {
  if (over_ || culprit_) return;
  over_ = exit_code;
  for (const HostState& host : hosts_) {
    if (host.trying()) host.link->cut();
  }
  finish_by_ = Deadline::after(kLongestGraceOfHosts + kTimeOfHostsToAnswer);
}

// Stops the hosts that still run after the job is over. A host that can reach this process, but not
// the other hosts, does not learn that the job is over.
void HostsAgent::end_stragglers() {
  finish_by_.reset();
  if (consoles_.out().saturated() || consoles_.err().saturated()) {
    finish_by_ = Deadline::after(kTimeOfHostsToAnswer);
  } else if (!stopping()) {
    stop_all(SIGTERM, plan_.shutdown_timeout);
  }
}

// A job that has not begun needs host 0, because the agents meet there.
void HostsAgent::lose(std::size_t index, const std::string& how) {
  HostState& host = hosts_[index];
  const bool needed = index == 0 && !begun();
  host.stage = Stage::kLost;
  if (leader_ == index) leader_.reset();
  const bool comes_back = !needed && num_left() > 0 && plan_return(index);
  if (needed || (num_left() < plan_.min_hosts && !comes_back)) {
    return fail(index, host.exit_code.value_or(kExitEnvironment), how);
  }
  const char* what = num_left() < plan_.min_hosts ? "waiting for it, with" : "going on with";
  consoles_.say(fmt::format("paceline: {}\npaceline: {} {} of {} hosts\n", how, what, num_left(),
                            num_hosts()));
  begin_if_ready();
}

std::string HostsAgent::end_of_connection(const HostState& host) const {
  const HostRoute& route = host.link->route();
  const int status = host.link->status();
  const std::string how = status > 128 && status < kExitOfSsh
                              ? fmt::format("was killed by {}", signal_name(status - 128))
                              : fmt::format("ended with exit code {}", status);
  std::string text;
  if (host.stage == Stage::kRunning) {
    text = fmt::format("{} was lost: its connection ({}) {}; its ranks end by themselves",
                       named(host), route.command.front(), how);
  } else if (status == kExitNotFound) {
    text = fmt::format("{}: paceline was not found there; {}", named(host), plan_.program_hint);
  } else {
    text = fmt::format("{} could not be reached: {} {} before paceline answered there", named(host),
                       route.command.front(), how);
  }
  const std::string words = host.link->last_lines();
  return words.empty() ? text : text + "\n" + words.substr(0, words.size() - 1);
}

// Ignores later failures: they are consequences of the first one, or of the signal that stops the
// job.
void HostsAgent::fail(std::size_t index, int exit_code, const std::string& text) {
  if (culprit_ || stop_signal_ != 0) return;
  culprit_ = index;
  culprit_code_ = exit_code;
  consoles_.say(fmt::format("paceline: {}\n", text));
  stop_all(SIGTERM, std::min(kLongestGraceOfHosts, plan_.shutdown_timeout));
}

// Names the hosts that may have died. A scheduler may notice that a host has died, and stop the
// job, before this process counts the host as lost.
void HostsAgent::name_silent_hosts() {
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostState& host = hosts_[i];
    const auto silence = std::chrono::floor<std::chrono::seconds>(host.link->silence());
    const bool there = host.stage == Stage::kRunning && !host.link->ended() && culprit_ != i;
    if (!there || silence < kUsualSilence) continue;
    consoles_.say(fmt::format("paceline: {} has sent nothing for {} s: it may have died\n",
                              named(host), silence.count()));
  }
}

void HostsAgent::stop_all(int signal, std::chrono::nanoseconds grace) {
  if (!stopping()) name_silent_hosts();
  const std::string payload(1, static_cast<char>(signal));
  for (const HostState& host : hosts_) {
    if (host.stage != Stage::kRunning) {
      host.link->cut();
    } else if (!host.exit_code) {
      host.link->send(FrameKind::kSignal, payload);
    }
  }
  if (stopping()) return;
  ending_ = Ending::kAsked;
  push_at_ = Deadline::after(grace + kTimeOfHostsToAnswer);
}

// Extends the deadlines, because a host that still sends timelines needs more time.
void HostsAgent::wait_for_timelines() {
  const auto later = [](std::optional<Deadline>& when) {
    if (when && when->remaining() < kTimeOfHostsToAnswer)
      when = Deadline::after(kTimeOfHostsToAnswer);
  };
  later(finish_by_);
  if (ending_ < Ending::kKilled) later(push_at_);
}

// The first call orders the hosts to kill their ranks. Later calls cut the connections, which has
// the same effect on a host that can still be reached.
void HostsAgent::push_harder() {
  ending_ = kHarder[static_cast<std::size_t>(ending_)];
  const std::string payload(1, static_cast<char>(SIGKILL));
  for (const HostState& host : hosts_) {
    if (ending_ == Ending::kCut) {
      host.link->cut();
    } else {
      host.link->send(FrameKind::kSignal, payload);
    }
  }
  push_at_ = Deadline::after(kTimeOfHostsToAnswer);
}

int HostsAgent::exit_code() const {
  const auto agreed = std::count_if(hosts_.begin(), hosts_.end(), [](const HostState& host) {
    return host.exit_code == kStoppedAsAgreed;
  });
  JobEnd end{.decided = over_, .stop_signal = stop_signal_, .abandoned = abandoned_};
  end.agreed = !culprit_ && agreed > 0 && agreed == num_left();
  if (culprit_) end.failed = culprit_code_;
  return end.exit_code();
}

bool HostRetrySchedule::plan(Moment now) {
  if (back_since_ && now - *back_since_ >= kLongLife) {
    tries_left_ = most_tries_;
    pause_ = kFirstPause;
  }
  back_since_.reset();
  next_.reset();
  if (tries_left_ == 0) return false;
  --tries_left_;
  next_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return true;
}

void HostRetrySchedule::give_up() {
  tries_left_ = 0;
  next_.reset();
}

void HostRetrySchedule::back(Moment now) {
  back_since_ = now;
  next_.reset();
}

// --- Lost hosts return to a job that continues ---

// Returns false if the host is not tried again: no try is left, or the job is being stopped.
bool HostsAgent::plan_return(std::size_t index) {
  HostState& host = hosts_[index];
  host.stage = Stage::kLost;
  return !stopping() && host.comeback.plan(Deadline::Clock::now());
}

void HostsAgent::tend_returns() {
  if (stopping() || over_) return;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    HostState& host = hosts_[i];
    if (host.stage == Stage::kReturning && put_off(host.answer_by).expired()) {
      host.answer_by = Deadline::never();
      host.link->cut();
    }
    if (host.comeback.due(Deadline::Clock::now()) && host.link->ended()) try_again(i);
  }
}

void HostsAgent::try_again(std::size_t index) {
  HostState& host = hosts_[index];
  host.comeback.begin();
  host.exit_code.reset();
  host.stage = Stage::kReturning;
  host.answer_by = Deadline::after(plan_.start_timeout);
  try {
    connect(index);
  } catch (const Error& error) {
    consoles_.say(fmt::format("paceline: {}: {}\n", named(host), error.what()));
    on_failed_return(index);
  }
}

// Sends the host its part of the job, with the endpoint where the agents meet now. If no agent
// leads at the moment, the host waits.
void HostsAgent::on_return(std::size_t index) {
  HostState& host = hosts_[index];
  host.stage = Stage::kBack;
  if (!leader_ || stopping() || over_) return;
  host.comeback.back(Deadline::Clock::now());
  RemoteJob job = plan_.parts[index].job;
  job.port = port_.value_or(0);
  job.part.meeting = meeting_;
  send_part(host, job);
  host.link->send(FrameKind::kInputEnd);
  consoles_.say(fmt::format("paceline: {} is back\n", named(host)));
}

// The agent that reports `meeting` may have given way to another agent; `meeting` is then the
// endpoint of that other agent.
void HostsAgent::on_leads(std::size_t index, const Endpoint& meeting) {
  const auto other = std::find_if(hosts_.begin(), hosts_.end(),
                                  [&](const HostState& host) { return host.led_at == meeting; });
  leader_ = other == hosts_.end() ? index : static_cast<std::size_t>(other - hosts_.begin());
  hosts_[*leader_].led_at = meeting;
  meeting_ = meeting;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].stage == Stage::kBack) on_return(i);
  }
}

void HostsAgent::on_failed_return(std::size_t index) {
  HostState& host = hosts_[index];
  if (!host.trying() || plan_return(index)) return;
  refuse_return(index, fmt::format("{} could not be started again", named(host)));
}

void HostsAgent::refuse_return(std::size_t index, const std::string& why) {
  HostState& host = hosts_[index];
  host.stage = Stage::kLost;
  host.comeback.give_up();
  host.link->cut();
  const std::string text = fmt::format("{}; it is not restarted any more (--host-retries)", why);
  if (num_left() < plan_.min_hosts) return fail(index, kExitEnvironment, text);
  consoles_.say(fmt::format("paceline: {}\n", text));
}

}  // namespace paceline::launcher
