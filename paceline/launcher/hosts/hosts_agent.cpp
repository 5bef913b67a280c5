#include "paceline/launcher/hosts/hosts_agent.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/launcher/hosts/remote_end.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {

HostsJobSocket::HostsJobSocket(EventLoop& loop, HostsJob job, const JobSocket::Say& say)
    : job_(std::move(job)),
      socket_(
          loop, 0, 0, [this](const JobRequest& request) { answer(request); }, say) {}

void HostsJobSocket::answer(const JobRequest& request) const {
  const std::string what = request.words.empty() ? "" : request.words.front();
  if (what == "describe") return send_answer(request, description());
  if (what == "stop") answer_stop(request, supervisor_);
}

std::string HostsJobSocket::description() const {
  nlohmann::ordered_json json;
  json["job"] = job_.run_id;
  json["id_is_shared"] = false;
  json["host"] = host_name();
  json["supervisor"] = supervisor_;
  json["launcher"] = getpid();
  json["command"] = job_.command;
  json["started"] = started_;
  json["generation"] = 0;
  json["world_size"] = job_.world_size;
  json["num_local_ranks"] = 0;
  json["log_directory"] = "";
  json["flight_directory"] = "";
  json["ranks"] = nlohmann::ordered_json::array();
  json["hosts"] = job_.hosts;
  return json_text(json) + "\n";
}

using namespace std::chrono_literals;

HostsAgent::HostsAgent(const HostsPlan& plan, AgentChannel channel)
    : plan_(plan),
      channel_{std::move(channel.control), {}},
      consoles_(loop_),
      entry_(loop_, plan.job, [this](const std::string& line) { consoles_.say(line); }),
      timelines_(plan.timeline),
      input_(loop_, std::move(channel.stdin_fd),
             [this](FrameKind kind, std::string_view payload) {
               hosts_[0].link->send(kind, payload);
             }),
      start_by_(Deadline::after(plan.start_timeout)) {}

int HostsAgent::run() {
  require_descriptors(static_cast<int>(plan_.parts.size()));
  loop_.watch(channel_.control.get(), [this] { on_control(); });
  hosts_.resize(plan_.parts.size());
  for (HostState& host : hosts_) host.comeback = HostRetrySchedule(plan_.host_tries);
  for (std::size_t i = 0; i < hosts_.size(); ++i) connect(i);
  while (!abandoned_ && !all_ended()) turn();
  if (!abandoned_) finish_timeline();
  while (!abandoned_ && !consoles_.empty()) turn();
  for (const HostState& host : hosts_) host.link->cut();
  const std::string lost = consoles_.lost();
  if (lost.empty()) return exit_code();
  consoles_.say(fmt::format(
      "paceline: warning: output of the ranks could not be written to {}; with --log-dir each host "
      "keeps that of its ranks\n",
      lost));
  return exit_code() == 0 ? kExitEnvironment : exit_code();
}

void HostsAgent::turn() {
  loop_.turn(next_deadline());
  if (!stopping() && !begun() && put_off(start_by_).expired()) on_late_start();
  if (finish_by_ && put_off(*finish_by_).expired()) end_stragglers();
  if (push_at_ && put_off(*push_at_).expired()) push_harder();
  if (alive_at_.expired()) look_after_connections();
  tend_returns();
  input_.tend();
  consoles_.watch_for_room();
  const bool full = consoles_.out().saturated() || consoles_.err().saturated();
  for (const HostState& host : hosts_) host.link->hold(full);
}

Deadline HostsAgent::next_deadline() const {
  auto left = alive_at_.remaining();
  if (finish_by_) left = std::min(left, put_off(*finish_by_).remaining());
  if (push_at_) left = std::min(left, put_off(*push_at_).remaining());
  for (const HostState& host : hosts_) {
    if (host.stage == Stage::kReturning) {
      left = std::min(left, put_off(host.answer_by).remaining());
    }
    if (!host.comeback.next()) continue;
    left = std::min<std::chrono::nanoseconds>(left, *host.comeback.next() - Deadline::Clock::now());
  }
  if (!stopping() && !begun()) left = std::min(left, put_off(start_by_).remaining());
  return Deadline::after(left);
}

bool HostsAgent::none_in(Stage stage) const {
  return std::none_of(hosts_.begin(), hosts_.end(),
                      [&](const HostState& host) { return host.stage == stage; });
}

bool HostsAgent::all_ended() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const HostState& host) { return host.link->ended(); });
}

int HostsAgent::num_left() const {
  return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(),
                                        [](const HostState& host) { return !host.lost(); }));
}

void HostsAgent::on_control() {
  const auto next = channel_.next_signal();
  if (!next) return;
  const int signal = *next;
  if (signal == SIGTSTP || signal == SIGCONT) at_rest_ = signal == SIGTSTP;
  if (signal == 0) {
    abandoned_ = true;
  } else if (is_for_ranks(signal)) {
    const std::string payload(1, static_cast<char>(signal));
    for (const HostState& host : hosts_) {
      if (host.stage == Stage::kRunning) host.link->send(FrameKind::kSignal, payload);
    }
  } else if (stop_signal_ == 0) {
    stop_signal_ = signal;
    stop_all(signal, plan_.shutdown_timeout);
  } else if (signal == SIGINT) {
    stop_all(signal, 0s);                // a later SIGINT makes the hosts kill their ranks
    if (all_ended()) abandoned_ = true;  // do not wait until the remaining output has been read
  }
}

void HostsAgent::on_frame(std::size_t index, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kHello:
      return on_hello(index, frame.payload);
    case FrameKind::kPort:
      if (index == 0 && !port_) on_port(frame.payload);
      return;
    case FrameKind::kLeads:
      return on_leads(index, decode_endpoint(frame.payload));
    case FrameKind::kOut:
      return on_output(index, 0, frame.payload);
    case FrameKind::kErr:
      return on_output(index, 1, frame.payload);
    case FrameKind::kSay:
    case FrameKind::kAnnounce:
      return on_words(index, frame);
    case FrameKind::kOver:
      return on_over(decode_number<std::uint8_t>(frame.payload));
    case FrameKind::kInputTaken:
      return input_.taken(decode_number<std::uint32_t>(frame.payload));
    case FrameKind::kTimeline:
      return on_timeline(index, frame.payload);
    case FrameKind::kExit:
      hosts_[index].exit_code = decode_number<std::uint8_t>(frame.payload);
      return;
    default:
      return;  // kAlive
  }
}

void HostsAgent::on_output(std::size_t index, int stream, const std::string& bytes) {
  Console& console = stream == 0 ? consoles_.out() : consoles_.err();
  auto& lines = hosts_[index].lines[stream];
  if (!lines) return console.write(bytes);
  std::string text;
  lines->feed(bytes, text);
  console.write(text);
}

void HostsAgent::on_timeline(std::size_t index, const std::string& packed) {
  timelines_.take(index, packed);
  wait_for_timelines();
}

void HostsAgent::finish_timeline() {
  std::vector<TimelineCollection::Host> hosts;
  for (const HostState& host : hosts_) {
    hosts.push_back({host.link->route().name, host.link->clock()});
  }
  consoles_.say(timelines_.finish(hosts));
}

// If the job ends because of one host, prints only the messages of that host's agent: the other
// agents report only consequences.
void HostsAgent::on_words(std::size_t index, const Frame& frame) {
  if (culprit_ && *culprit_ != index) return;
  if (frame.kind == FrameKind::kAnnounce) return consoles_.say(frame.payload);
  std::string lines;
  hosts_[index].words.feed(frame.payload, lines);
  consoles_.say(lines);
}

void HostsAgent::look_after_connections() {
  alive_at_ = Deadline::after(kAliveInterval);
  loop_.look();
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostLink& link = *hosts_[i].link;
    if (link.ended() || !link.greeted()) continue;
    hosts_[i].link->send(FrameKind::kAlive);
    hosts_[i].link->compare_clocks();
    if (link.silence() < kSilenceLimit) continue;
    if (!over_ && !stopping() && !hosts_[i].lost()) {
      lose(i, fmt::format("{} was lost: it sent nothing for {} s", named(hosts_[i]),
                          kSilenceLimit.count()));
    }
    hosts_[i].link->cut();
  }
}

// --- The start: connections, greetings, parts ---

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
        fmt::format("{} has paceline {}, but this machine has {}; {}", named(host),
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
  port_ = decode_number<std::uint16_t>(payload);
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
  // After a restart rank 0 may run on this host; it must then find the end of its input.
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
  start_by_ = Deadline::after(plan_.start_timeout);  // now the limit for host 0 to report its port
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
    words = hosts_[i].link->last_lines() + words;
  }
  if (!words.empty()) words = "\n" + words.substr(0, words.size() - 1);
  const std::chrono::duration<double> limit = plan_.start_timeout;
  fail(first, kExitEnvironment,
       fmt::format("no answer within {:g} s (--start-timeout) from: {}{}", limit.count(), missing,
                   words));
}

}  // namespace paceline::launcher
