// How a job of --hosts ends, or loses hosts: failures, lost connections, stopping, the exit code.

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "paceline/core/exit_code.h"
#include "paceline/hosts/hosts_agent.h"
#include "paceline/process/rank_end.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;

constexpr int kExitOfSsh = 255;
constexpr std::chrono::nanoseconds kUsualSilence = 2 * kAliveInterval;
constexpr std::chrono::nanoseconds kLongestGraceOfHosts = 5s;
// A host ends its ranks itself when their time is over; this is what it may take to say so.
constexpr std::chrono::nanoseconds kTimeOfHostsToAnswer = 5s;

// For a report on its way: beyond a round trip, what this process may take to come to it, and no
// more for a host that hardly answers.
constexpr std::chrono::nanoseconds kDelayHere = 20ms, kLongestWay = 2s;

}  // namespace

// The others are stopped at once; what they report was on its way already, or follows from it.
void HostsAgent::on_culprit(std::size_t index, const Culprit& culprit) {
  if (culprit_ || stop_signal_ != 0 || culprit.generation <= reported_generation_) return;
  if (!failures_.empty() && failures_.front().culprit.generation != culprit.generation) {
    decide_first();
  }
  failures_.push_back({index, culprit, mark_of(index, culprit)});
  if (!decide_at_) decide_at_ = Deadline::after(longest_round_trip());
  if (plan_.goes_on || stopping_) return;
  stop_all(SIGTERM, std::min(kLongestGraceOfHosts, plan_.shutdown_timeout));
}

FailureMark HostsAgent::mark_of(std::size_t index, const Culprit& culprit) const {
  FailureMark mark{.signal = culprit.signal};
  const ClockComparison& clock = hosts_[index].link->clock();
  const std::chrono::nanoseconds at(culprit.at);
  if (!clock.measured() || !is_reading(at)) return mark;
  mark.at = at + clock.offset();
  mark.error = clock.error();
  return mark;
}

// Nobody else can report when there is one host.
std::chrono::nanoseconds HostsAgent::longest_round_trip() const {
  if (hosts_.size() == 1) return 0ns;
  std::chrono::nanoseconds longest{};
  for (const HostState& host : hosts_) {
    if (!host.link->ended()) longest = std::max(longest, host.link->clock().longest_round_trip());
  }
  return std::min(longest, kLongestWay) + kDelayHere;
}

void HostsAgent::decide_first() {
  decide_at_.reset();
  if (failures_.empty()) return;
  const std::vector<Failure> failures = std::exchange(failures_, {});
  const Failure* first = &failures.front();
  for (const Failure& one : failures) {
    if (failed_before(one.mark, first->mark)) first = &one;
  }
  reported_generation_ = first->culprit.generation;
  consoles_.say(first->culprit.report);
  if (!plan_.goes_on) {
    culprit_ = first->host;
    culprit_code_ = first->culprit.exit_code;
  }
  for (const auto& [host, text] : std::exchange(held_words_, {})) on_words(host, text);
}

void HostsAgent::on_end(std::size_t index) {
  HostState& host = hosts_[index];
  inquiry_.lose(static_cast<int>(index));
  stragglers_.lose(static_cast<int>(index));
  pass_on_inquiries();
  for (int stream : {0, 1}) {
    std::string rest;
    if (host.lines[stream]) host.lines[stream]->finish(rest);
    (stream == 0 ? consoles_.out() : consoles_.err()).write(rest);
  }
  if (host.exit_code == 0 || host.exit_code == kStoppedAsAgreed) return;
  if (plan_.goes_on) return on_end_of_part(index);
  if (host.exit_code) {
    return fail(index, *host.exit_code,
                fmt::format("{} failed with exit code {}", named(host), *host.exit_code));
  }
  fail(index, kExitEnvironment, end_of_connection(host));
}

void HostsAgent::on_over(int exit_code) {
  if (!plan_.goes_on || over_) return;
  over_ = exit_code;
  for (const HostState& host : hosts_) {
    if (host.trying) host.link->cut();
  }
  finish_by_ = Deadline::after(kLongestGraceOfHosts + kTimeOfHostsToAnswer);
}

// A host that is cut off from the others, but not from here, does not know that the job is over.
void HostsAgent::end_stragglers() {
  finish_by_.reset();
  if (consoles_.out().saturated() || consoles_.err().saturated()) {
    finish_by_ = Deadline::after(kTimeOfHostsToAnswer);
  } else if (!stopping_) {
    stop_all(SIGTERM, plan_.shutdown_timeout);
  }
}

void HostsAgent::on_end_of_part(std::size_t index) {
  HostState& host = hosts_[index];
  if (over_ || stopping_) return;
  if (host.lost) return on_failed_return(index);
  // Whoever stops an agent on its host wants that host back.
  if (host.exit_code == 128 + SIGTERM || host.exit_code == 128 + SIGINT) host.comeback.give_up();
  lose(index, host.exit_code
                  ? fmt::format("{} ended with exit code {}", named(host), *host.exit_code)
                  : end_of_connection(host));
}

// A job that has not begun cannot do without the host where it meets.
void HostsAgent::lose(std::size_t index, const std::string& how) {
  HostState& host = hosts_[index];
  const bool needed = index == 0 && !all(&HostState::running);
  host.lost = true;
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
  if (host.running) {
    text = fmt::format("{} was lost: its connection ({}) {}; its ranks end by themselves",
                       named(host), route.command.front(), how);
  } else if (status == kExitNotFound) {
    text = fmt::format("{}: paceline was not found there; {}", named(host), plan_.program_hint);
  } else {
    text = fmt::format("{} could not be reached: {} {} before paceline answered there", named(host),
                       route.command.front(), how);
  }
  const std::string words = host.link->words();
  return words.empty() ? text : text + "\n" + words.substr(0, words.size() - 1);
}

// The first failure counts; what comes after it, or after a signal that stops the job, follows from
// it.
void HostsAgent::fail(std::size_t index, int exit_code, const std::string& text) {
  const bool known = culprit_ || (!plan_.goes_on && !failures_.empty());
  if (known || stop_signal_ != 0) return;
  decide_first();
  culprit_ = index;
  culprit_code_ = exit_code;
  consoles_.say(fmt::format("paceline: {}\n", text));
  stop_all(SIGTERM, std::min(kLongestGraceOfHosts, plan_.shutdown_timeout));
}

// A scheduler may notice that a host has died, and end the job, before it counts as lost here.
void HostsAgent::name_silent_hosts() {
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostState& host = hosts_[i];
    const auto silence = std::chrono::floor<std::chrono::seconds>(host.link->silence());
    const bool there = host.running && !host.lost && !host.link->ended() && culprit_ != i;
    if (!there || silence < kUsualSilence) continue;
    consoles_.say(fmt::format("paceline: nothing has come from {} for {} s: it may have died\n",
                              named(host), silence.count()));
  }
}

void HostsAgent::stop_all(int signal, std::chrono::nanoseconds grace) {
  if (!stopping_) name_silent_hosts();
  const std::string payload(1, static_cast<char>(signal));
  for (const HostState& host : hosts_) {
    if (!host.running) {
      host.link->cut();
    } else if (!host.exit_code) {
      host.link->send(FrameKind::kSignal, payload);
    }
  }
  if (!stopping_) push_at_ = Deadline::after(grace + kTimeOfHostsToAnswer);
  stopping_ = true;
}

// What a host still sends is not held against it.
void HostsAgent::wait_for_timelines() {
  const auto later = [](std::optional<Deadline>& when) {
    if (when && when->remaining() < kTimeOfHostsToAnswer)
      when = Deadline::after(kTimeOfHostsToAnswer);
  };
  later(finish_by_);
  if (!pushed_) later(push_at_);
}

// First the hosts are told to kill; then the connections are cut, which has the same effect on a
// host that can still be reached.
void HostsAgent::push_harder() {
  const std::string payload(1, static_cast<char>(SIGKILL));
  for (const HostState& host : hosts_) {
    if (pushed_) {
      host.link->cut();
    } else {
      host.link->send(FrameKind::kSignal, payload);
    }
  }
  pushed_ = true;
  push_at_ = Deadline::after(kTimeOfHostsToAnswer);
}

int HostsAgent::exit_code() const {
  if (culprit_) return culprit_code_;
  const auto agreed = std::count_if(hosts_.begin(), hosts_.end(), [](const HostState& host) {
    return host.exit_code == kStoppedAsAgreed;
  });
  if (agreed > 0 && agreed == num_left()) return kStoppedAsAgreed;
  if (over_) return *over_;
  if (stop_signal_ != 0) return 128 + stop_signal_;
  return abandoned_ ? 128 + SIGKILL : 0;
}

}  // namespace paceline::launch
