// How a job of --hosts begins: connections, greetings, parts.

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/exit_code.h"
#include "paceline/launcher/hosts/hosts_agent.h"

namespace paceline::launcher {
void HostsAgent::connect(std::size_t index) {
  HostState& host = hosts_[index];
  const HostsPlan::Part& part = plan_.parts[index];
  if (plan_.prefix_lines || index > 0) {
    const std::string prefix = plan_.prefix_lines ? "" : fmt::format("[{}] ", part.route.name);
    for (auto& lines : host.lines) lines.emplace(prefix);
  }
  host.words = LineFormatter(plan_.parts.size() > 1 ? fmt::format("[{}] ", part.route.name) : "");
  host.link = std::make_unique<HostLink>(
      loop_, part.route,
      HostLink::Handlers{[this, index](const Frame& frame) { on_frame(index, frame); },
                         [this, index] { on_end(index); }});
}

void HostsAgent::on_hello(std::size_t index, const std::string& version) {
  HostState& host = hosts_[index];
  if (version != plan_.version) {
    const std::string why =
        fmt::format("{} has another paceline: {}, here it is {}; {}", named(host),
                    neutralise(version), plan_.version, plan_.program_hint);
    return host.lost() ? refuse_return(index, why) : fail(index, kExitEnvironment, why);
  }
  if (host.lost()) return on_return(index);
  host.stage = Stage::kReady;
  begin_if_ready();
}

void HostsAgent::begin_if_ready() {
  if (all_ready() && hosts_[0].stage == Stage::kReady && !stopping()) give_part(0);
}

void HostsAgent::on_port(const std::string& payload) {
  port_ = ByteReader(as_bytes(payload)).get<std::uint16_t>();
  if (stopping()) return;
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (!hosts_[i].lost()) give_part(i);
  }
  input_.begin();
}

void HostsAgent::give_part(std::size_t index) {
  RemoteJob job = plan_.parts[index].job;
  if (index > 0) job.port = *port_;
  send_part(hosts_[index], job);
  // Rank 0 may come there one day, and then finds that nothing is left to read.
  if (index > 0) hosts_[index].link->send(FrameKind::kInputEnd);
}

void HostsAgent::send_part(HostState& host, const RemoteJob& job) {
  host.stage = Stage::kRunning;
  host.link->send(FrameKind::kJob, encode(job));
  if (at_rest_) host.link->send(FrameKind::kSignal, std::string(1, static_cast<char>(SIGTSTP)));
}

bool HostsAgent::may_begin_without_missing() const {
  const auto ready = std::count_if(hosts_.begin(), hosts_.end(), [](const HostState& host) {
    return host.stage == Stage::kReady;
  });
  return hosts_[0].stage == Stage::kReady && ready >= plan_.min_hosts;
}

void HostsAgent::on_late_start() {
  if (!may_begin_without_missing()) return fail_start();
  start_by_ = Deadline::after(plan_.start_timeout);  // for the first to say its ports
  const double limit = std::chrono::duration<double>(plan_.start_timeout).count();
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (hosts_[i].stage != Stage::kConnecting) continue;
    hosts_[i].link->cut();
    lose(i, fmt::format("{}: no answer within {:g} s (--start-timeout)", named(hosts_[i]), limit));
  }
}

void HostsAgent::fail_start() {
  std::string missing, words;
  std::size_t first = hosts_.size();
  for (std::size_t i = hosts_.size(); i-- > 0;) {
    const bool owes_its_port = i == 0 && all_ready();
    if (hosts_[i].lost() || (hosts_[i].stage != Stage::kConnecting && !owes_its_port)) continue;
    first = i;
    missing = hosts_[i].link->route().name + (missing.empty() ? "" : ", ") + missing;
    words = hosts_[i].link->words() + words;
  }
  if (!words.empty()) words = "\n" + words.substr(0, words.size() - 1);
  const std::chrono::duration<double> limit = plan_.start_timeout;
  fail(first, kExitEnvironment,
       fmt::format("no answer within {:g} s (--start-timeout) from: {}{}", limit.count(), missing,
                   words));
}

}  // namespace paceline::launcher
