// How a host that was lost comes back into a job of --hosts that goes on.

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/launcher/hosts/hosts_agent.h"

namespace paceline::launcher {

// False when there is no try left.
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

// Its agent finds the others where they meet now, unless none leads them at the moment.
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

// The agent that reports this may have given way to another agent, and then means that one.
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
