#include "paceline/launch/hosts_agent.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/exit_code.h"
#include "paceline/launch/consoles.h"
#include "paceline/launch/descriptor_limit.h"
#include "paceline/launch/failure_report.h"
#include "paceline/launch/hang_inquiry.h"
#include "paceline/launch/line_formatter.h"
#include "paceline/launch/remote_end.h"
#include "paceline/launch/straggler_inquiry.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;

constexpr int kExitEnvironment = 3;
constexpr int kExitNotFound = 127;
constexpr int kExitOfSsh = 255;
constexpr std::chrono::nanoseconds kLongestGraceAfterFailure = 5s;
// A host ends its ranks itself when their time is over; this is what it may take to say so.
constexpr std::chrono::nanoseconds kTimeToAnswer = 5s;
constexpr std::size_t kInputInFlight = 256 << 10;
constexpr std::size_t kInputChunk = 16 << 10;

// One host as the job sees it.
struct HostState {
  std::unique_ptr<HostLink> link;
  std::optional<LineFormatter> lines[2];  // of stdout and stderr
  LineFormatter words{""};                // of its launcher
  bool ready = false;                     // its hello was the right one
  bool running = false;                   // it has its part
  bool lost = false;                      // the job goes on, or begins, without it
  std::optional<int> exit_code;
};

// The agents of a job that goes on tell each other what happened, and each says it.
class SharedWords {
 public:
  // Whether another host has said this, and this one has not, since it was last news.
  bool heard(std::size_t host, const std::string& text) {
    const auto found = std::find_if(said_.begin(), said_.end(),
                                    [&](const auto& entry) { return entry.first == text; });
    if (found != said_.end() && found->second.insert(host).second) return true;
    if (found != said_.end()) said_.erase(found);
    said_.emplace_back(text, std::set<std::size_t>{host});
    if (said_.size() > kRemembered) said_.pop_front();
    return false;
  }

 private:
  static constexpr std::size_t kRemembered = 64;
  std::deque<std::pair<std::string, std::set<std::size_t>>> said_;
};

class HostsAgent {
 public:
  HostsAgent(const HostsPlan& plan, AgentChannel channel)
      : plan_(plan),
        channel_(std::move(channel)),
        consoles_(loop_),
        entry_(loop_, plan.job),
        start_by_(Deadline::after(plan.start_timeout)) {}

  int run();

 private:
  void connect(std::size_t index);
  void turn();
  void on_control();
  void on_frame(std::size_t index, const Frame& frame);
  void on_hello(std::size_t index, const std::string& version);
  void on_ports(const JobPorts& ports);
  void on_output(std::size_t index, int stream, const std::string& bytes);
  void on_words(std::size_t index, const std::string& text);
  void on_culprit(std::size_t index, const Culprit& culprit);
  void on_over(int exit_code);
  void on_report(std::size_t index, const std::string& text);
  void pass_on_inquiries();
  void on_end(std::size_t index);
  void end_stragglers();
  void on_end_of_part(std::size_t index);
  void lose(std::size_t index, const std::string& how);
  void begin_if_ready();
  bool may_begin_without_missing() const;
  void on_late_start();
  int num_left() const;
  void give_part(std::size_t index);
  void fail(std::size_t index, int exit_code, const std::string& text);
  void fail_start();
  void stop_all(int signal, std::chrono::nanoseconds grace);
  void push_harder();
  void look_after_connections();
  void watch_input();
  void pump_input();
  Deadline next_deadline() const;
  bool all_ended() const;
  bool all(bool HostState::*flag) const;
  int num_hosts() const { return static_cast<int>(hosts_.size()); }
  std::string end_of_connection(const HostState& host) const;
  std::string named(const HostState& host) const {
    return fmt::format("host {}", host.link->route().name);
  }
  int exit_code() const;

  const HostsPlan& plan_;
  AgentChannel channel_;
  EventLoop loop_;
  Consoles consoles_;
  HostsEntry entry_;
  std::vector<HostState> hosts_;
  JobPorts ports_;
  Deadline start_by_;
  Deadline alive_at_ = Deadline::after(kAliveInterval);
  std::size_t input_in_flight_ = 0;
  bool input_watched_ = false, input_is_file_ = false;
  bool abandoned_ = false;  // the supervisor is gone
  int stop_signal_ = 0;     // the first signal that ended the job
  SharedWords words_;
  HangInquiry inquiry_;  // these two are of a job whose agents do not meet
  StragglerInquiry stragglers_;
  int reported_generation_ = -1;       // whose first failure has been shown
  std::optional<int> over_;            // the exit code that the agents have agreed upon
  std::optional<Deadline> finish_by_;  // for all hosts, then
  std::optional<std::size_t> culprit_;
  int culprit_code_ = 0;
  bool stopping_ = false, pushed_ = false;
  std::optional<Deadline> push_at_;  // what has not ended by then is ended harder
};

int HostsAgent::run() {
  require_descriptors(static_cast<int>(plan_.parts.size()));
  loop_.watch(channel_.control.get(), [this] { on_control(); });
  hosts_.resize(plan_.parts.size());
  for (std::size_t i = 0; i < hosts_.size(); ++i) connect(i);
  while (!abandoned_ && !(all_ended() && consoles_.empty())) turn();
  for (const HostState& host : hosts_) host.link->cut();
  return exit_code();
}

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

void HostsAgent::turn() {
  loop_.turn(next_deadline());
  if (!stopping_ && !all(&HostState::running) && start_by_.expired()) on_late_start();
  if (finish_by_ && finish_by_->expired()) end_stragglers();
  if (push_at_ && push_at_->expired()) push_harder();
  if (alive_at_.expired()) look_after_connections();
  inquiry_.tick(Deadline::Clock::now());
  pass_on_inquiries();
  if (input_is_file_) pump_input();
  consoles_.watch_for_room();
  const bool full = consoles_.out().saturated() || consoles_.err().saturated();
  for (const HostState& host : hosts_) host.link->hold(full);
}

Deadline HostsAgent::next_deadline() const {
  auto left = alive_at_.remaining();
  if (finish_by_) left = std::min(left, finish_by_->remaining());
  if (push_at_) left = std::min(left, push_at_->remaining());
  if (inquiry_.next_deadline() != HangInquiry::Moment::max()) {
    left =
        std::min<std::chrono::nanoseconds>(left, inquiry_.next_deadline() - Deadline::Clock::now());
  }
  if (!stopping_ && !all(&HostState::running)) left = std::min(left, start_by_.remaining());
  return Deadline::after(left);
}

bool HostsAgent::all(bool HostState::*flag) const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [&](const HostState& host) { return host.lost || host.*flag; });
}

bool HostsAgent::all_ended() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const HostState& host) { return host.link->ended(); });
}

void HostsAgent::on_control() {
  unsigned char signal = 0;
  if (read(channel_.control.get(), &signal, 1) != 1) {
    abandoned_ = true;
    return;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    const std::string payload(1, static_cast<char>(signal));
    for (const HostState& host : hosts_) {
      if (host.running) host.link->send(FrameKind::kSignal, payload);
    }
  } else if (stop_signal_ == 0) {
    stop_signal_ = signal;
    stop_all(signal, plan_.shutdown_timeout);
  } else if (signal == SIGINT) {
    stop_all(signal, 0s);                // the hosts know what a second one means
    if (all_ended()) abandoned_ = true;  // nobody reads what is left to print
  }
}

void HostsAgent::on_frame(std::size_t index, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kHello:
      return on_hello(index, frame.payload);
    case FrameKind::kPorts:
      if (index == 0) on_ports(decode_ports(frame.payload));
      return;
    case FrameKind::kOut:
      return on_output(index, 0, frame.payload);
    case FrameKind::kErr:
      return on_output(index, 1, frame.payload);
    case FrameKind::kSay:
      return on_words(index, frame.payload);
    case FrameKind::kCulprit:
      return on_culprit(index, decode_culprit(frame.payload));
    case FrameKind::kOver:
      return on_over(static_cast<unsigned char>(frame.payload.at(0)));
    case FrameKind::kReport:
      return on_report(index, frame.payload);
    case FrameKind::kInputTaken:
      input_in_flight_ -= std::min<std::size_t>(
          input_in_flight_, ByteReader(as_bytes(frame.payload)).get<std::uint32_t>());
      return watch_input();
    case FrameKind::kExit:
      if (!frame.payload.empty()) {
        hosts_[index].exit_code = static_cast<unsigned char>(frame.payload[0]);
      }
      return;
    default:
      return;  // kAlive
  }
}

void HostsAgent::on_hello(std::size_t index, const std::string& version) {
  HostState& host = hosts_[index];
  if (version != plan_.version) {
    return fail(index, kExitEnvironment,
                fmt::format("{} has another paceline: {}, here it is {}; {}", named(host),
                            neutralise(version), plan_.version, plan_.program_hint));
  }
  host.ready = true;
  begin_if_ready();
}

void HostsAgent::begin_if_ready() {
  if (all(&HostState::ready) && !hosts_[0].running && !stopping_) give_part(0);
}

void HostsAgent::on_ports(const JobPorts& ports) {
  ports_ = ports;
  if (stopping_) return;
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (!hosts_[i].lost) give_part(i);
  }
  std::map<HangInquiry::Agent, std::string> names;
  std::set<HangInquiry::Agent> agents;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    names.emplace(static_cast<int>(i), hosts_[i].link->route().name);
    agents.insert(static_cast<int>(i));
  }
  stragglers_.begin(0, std::move(agents));
  inquiry_.begin(0, std::move(names));
  watch_input();
}

void HostsAgent::give_part(std::size_t index) {
  RemoteJob job = plan_.parts[index].job;
  if (index > 0) job.ports = ports_;
  hosts_[index].running = true;
  hosts_[index].link->send(FrameKind::kJob, encode(job));
  // Rank 0 may come there one day, and then finds that nothing is left to read.
  if (index > 0) hosts_[index].link->send(FrameKind::kInputEnd);
}

void HostsAgent::on_output(std::size_t index, int stream, const std::string& bytes) {
  Console& console = stream == 0 ? consoles_.out() : consoles_.err();
  auto& lines = hosts_[index].lines[stream];
  if (!lines) return console.write(bytes);
  std::string text;
  lines->feed(bytes, text);
  console.write(text);
}

void HostsAgent::on_report(std::size_t index, const std::string& text) {
  const Report report = decode_report(text);
  const auto agent = static_cast<HangInquiry::Agent>(index);
  if (stopping_) return;
  if (const auto* where = std::get_if<Whereabouts>(&report)) {
    inquiry_.take(agent, *where, Deadline::Clock::now());
  }
  if (const auto* shares = std::get_if<Shares>(&report)) stragglers_.take(agent, *shares);
  pass_on_inquiries();
}

// What concerns the whole job is said here, once.
void HostsAgent::pass_on_inquiries() {
  bool said = false;
  for (auto& [to, order] : inquiry_.take_mail()) {
    if (auto* hang = std::get_if<HangOrder>(&order)) {
      if (!std::exchange(said, true)) consoles_.say(hang_text(*hang));
      hang->sentence.clear();
    }
    hosts_[static_cast<std::size_t>(to)].link->send(FrameKind::kOrder, encode(order));
  }
  for (const auto& [to, order] : stragglers_.take_mail()) {
    hosts_[static_cast<std::size_t>(to)].link->send(FrameKind::kOrder, encode(order));
  }
}

// After a failure, what the other hosts' launchers have to say is its consequence.
void HostsAgent::on_words(std::size_t index, const std::string& text) {
  if (culprit_ && *culprit_ != index) return;
  if (plan_.goes_on && words_.heard(index, text)) return;
  std::string lines;
  hosts_[index].words.feed(text, lines);
  consoles_.say(lines);
}

void HostsAgent::on_culprit(std::size_t index, const Culprit& culprit) {
  const bool first = !culprit_ && stop_signal_ == 0;
  if (!first || culprit.generation <= reported_generation_) return;
  reported_generation_ = culprit.generation;
  consoles_.say(culprit.report);
  if (plan_.goes_on) return;
  culprit_ = index;
  culprit_code_ = culprit.exit_code;
  stop_all(SIGTERM, std::min(kLongestGraceAfterFailure, plan_.shutdown_timeout));
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
  finish_by_ = Deadline::after(kLongestGraceAfterFailure + kTimeToAnswer);
}

// A host that is cut off from the others, but not from here, does not know that the job is over.
void HostsAgent::end_stragglers() {
  finish_by_.reset();
  if (consoles_.out().saturated() || consoles_.err().saturated()) {
    finish_by_ = Deadline::after(kTimeToAnswer);
  } else if (!stopping_) {
    stop_all(SIGTERM, plan_.shutdown_timeout);
  }
}

void HostsAgent::on_end_of_part(std::size_t index) {
  const HostState& host = hosts_[index];
  if (over_ || host.lost || stopping_) return;
  lose(index, host.exit_code
                  ? fmt::format("{} ended with exit code {}", named(host), *host.exit_code)
                  : end_of_connection(host));
}

int HostsAgent::num_left() const {
  return static_cast<int>(std::count_if(hosts_.begin(), hosts_.end(),
                                        [](const HostState& host) { return !host.lost; }));
}

// A job that has not begun cannot do without the host where it meets.
void HostsAgent::lose(std::size_t index, const std::string& how) {
  HostState& host = hosts_[index];
  const bool needed = index == 0 && !all(&HostState::running);
  host.lost = true;
  if (num_left() < plan_.min_hosts || needed) {
    return fail(index, host.exit_code.value_or(kExitEnvironment), how);
  }
  consoles_.say(fmt::format("paceline: {}\npaceline: going on with {} of {} hosts\n", how,
                            num_left(), num_hosts()));
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
  if (culprit_ || stop_signal_ != 0) return;
  culprit_ = index;
  culprit_code_ = exit_code;
  consoles_.say(fmt::format("paceline: {}\n", text));
  stop_all(SIGTERM, std::min(kLongestGraceAfterFailure, plan_.shutdown_timeout));
}

bool HostsAgent::may_begin_without_missing() const {
  const auto ready = std::count_if(hosts_.begin(), hosts_.end(),
                                   [](const HostState& host) { return host.ready && !host.lost; });
  return plan_.goes_on && hosts_[0].ready && !hosts_[0].running && ready >= plan_.min_hosts;
}

void HostsAgent::on_late_start() {
  if (!may_begin_without_missing()) return fail_start();
  start_by_ = Deadline::after(plan_.start_timeout);  // for the first to say its ports
  const double limit = std::chrono::duration<double>(plan_.start_timeout).count();
  for (std::size_t i = 1; i < hosts_.size(); ++i) {
    if (hosts_[i].ready || hosts_[i].lost) continue;
    hosts_[i].link->cut();
    lose(i, fmt::format("{}: no answer within {:g} s (--start-timeout)", named(hosts_[i]), limit));
  }
}

void HostsAgent::fail_start() {
  std::string missing, words;
  std::size_t first = hosts_.size();
  for (std::size_t i = hosts_.size(); i-- > 0;) {
    if (hosts_[i].lost || (hosts_[i].ready && (i > 0 || !all(&HostState::ready)))) continue;
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

void HostsAgent::stop_all(int signal, std::chrono::nanoseconds grace) {
  const std::string payload(1, static_cast<char>(signal));
  for (const HostState& host : hosts_) {
    if (!host.running) {
      host.link->cut();
    } else if (!host.exit_code) {
      host.link->send(FrameKind::kSignal, payload);
    }
  }
  if (!stopping_) push_at_ = Deadline::after(grace + kTimeToAnswer);
  stopping_ = true;
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
  push_at_ = Deadline::after(kTimeToAnswer);
}

void HostsAgent::look_after_connections() {
  alive_at_ = Deadline::after(kAliveInterval);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostLink& link = *hosts_[i].link;
    if (link.ended() || !link.greeted()) continue;
    hosts_[i].link->send(FrameKind::kAlive);
    if (!link.silent_for(kSilenceLimit)) continue;
    const std::string how = fmt::format("{} was lost: nothing came from it for {} s",
                                        named(hosts_[i]), kSilenceLimit.count());
    if (!plan_.goes_on) {
      fail(i, kExitEnvironment, how);
    } else if (!over_ && !stopping_ && !hosts_[i].lost) {
      lose(i, how);
    }
    hosts_[i].link->cut();
  }
}

// Rank 0's input is read only as fast as rank 0 takes it.
void HostsAgent::watch_input() {
  const bool wanted = channel_.stdin_fd && !input_is_file_ && input_in_flight_ < kInputInFlight;
  if (wanted == input_watched_) return;
  input_watched_ = wanted;
  if (!wanted) return loop_.forget(channel_.stdin_fd.get());
  try {
    loop_.watch(channel_.stdin_fd.get(), [this] { pump_input(); });
  } catch (const Error&) {  // a plain file, which is always ready
    input_watched_ = false;
    input_is_file_ = true;
    pump_input();
  }
}

void HostsAgent::pump_input() {
  char buffer[kInputChunk];
  while (channel_.stdin_fd && input_in_flight_ < kInputInFlight) {
    const ssize_t length = read(channel_.stdin_fd.get(), buffer, sizeof buffer);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) {
      if (input_watched_) loop_.forget(channel_.stdin_fd.get());
      input_watched_ = false;
      channel_.stdin_fd.reset();
      return hosts_[0].link->send(FrameKind::kInputEnd);
    }
    hosts_[0].link->send(FrameKind::kInput, {buffer, static_cast<std::size_t>(length)});
    input_in_flight_ += static_cast<std::size_t>(length);
    if (!input_is_file_) break;
  }
  if (!input_is_file_) watch_input();
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

}  // namespace

int run_on_hosts(const HostsPlan& plan, AgentChannel channel) {
  return HostsAgent(plan, std::move(channel)).run();
}

}  // namespace paceline::launch
