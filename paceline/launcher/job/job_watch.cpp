#include "paceline/launcher/job/job_watch.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/diagnosis/hang_inquiry.h"
#include "paceline/launcher/diagnosis/thread_census.h"

namespace paceline::launcher {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxSurveys = 8;
constexpr int kMaxReaders = 4;

Fd make_timer(std::chrono::nanoseconds interval) {
  Fd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) throw system_error("timerfd_create()");
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(interval);
  const timespec every{.tv_sec = seconds.count(), .tv_nsec = (interval - seconds).count()};
  const itimerspec setting{.it_interval = every, .it_value = every};
  timerfd_settime(timer.get(), 0, &setting, nullptr);
  return timer;
}

int all_threads(const LaunchPlan& plan) {
  int count = 0;
  for (const RankPlacement& rank : plan.placement.ranks) count += rank.num_threads;
  return count;
}

StackReader::Target crash_target(const JobRequest& request) {
  return {request.sender, {static_cast<pid_t>(std::atoi(request.words[1].c_str()))}, true};
}

}  // namespace

JobWatch::JobWatch(EventLoop& loop, const LaunchPlan& plan, Folders folders, Actions actions)
    : loop_(loop),
      plan_(plan),
      folders_(std::move(folders)),
      actions_(std::move(actions)),
      socket_(
          loop, plan.options.num_local_ranks, all_threads(plan),
          [this](JobRequest request) { guarded([&] { answer(std::move(request)); }); },
          actions_.say) {
  if (folders_.flights.empty()) return;
  const LaunchOptions& options = plan_.options;
  if (options.hang_timeout.count() > 0) {
    hang_watch_.emplace(options.hang_timeout, folders_.flights, actions_.meeting);
    hang_timer_ = make_timer(hang_watch_->interval());
    loop_.watch(hang_timer_.get(), [this] { guarded([this] { look_for_hang(); }); });
  }
  const bool several_ranks = options.num_local_ranks > 1 || options.several_nodes();
  if (options.straggler_patience.count() > 0 && several_ranks) {
    make_straggler_watch();
    straggler_timer_ = make_timer(options.straggler_patience / StragglerWatch::kLooks);
    loop_.watch(straggler_timer_.get(), [this] { guarded([this] { look_for_straggler(); }); });
  }
}

JobWatch::~JobWatch() {
  for (const Fd* timer : {&hang_timer_, &straggler_timer_}) {
    if (*timer) loop_.forget(timer->get());
  }
}

void JobWatch::add_variables(Environment& environment) const {
  if (!socket_.name().empty()) environment["PACELINE_JOB_SOCKET"] = socket_.name();
}

void JobWatch::begin_generation(const NodePlace& place) {
  place_ = place;
  memory_at_start_ = read_memory_counters();
  ranks_.clear();
  crashes_.clear();
  ended_because_.clear();
  others_ending_until_ = Deadline::after(0ns);
  hang_survey_.reset();
  watch_anew();
}

// Starts new watches, so that records of an older generation, the time between two generations, and
// a time in which the ranks were stopped do not count.
void JobWatch::watch_anew() {
  const LaunchOptions& options = plan_.options;
  if (hang_watch_) hang_watch_.emplace(options.hang_timeout, folders_.flights, actions_.meeting);
  if (straggler_timer_) make_straggler_watch();
}

void JobWatch::rest(bool at_rest) {
  at_rest_ = at_rest;
  if (!at_rest) watch_anew();
}

void JobWatch::make_straggler_watch() {
  const LaunchOptions& options = plan_.options;
  if (options.several_nodes()) {
    straggler_report_.emplace(options.straggler_patience);
  } else {
    straggler_watch_.emplace(options.straggler_patience, folders_.flights);
  }
}

void JobWatch::rank_started(int rank, pid_t pid) { ranks_[rank] = pid; }

void JobWatch::rank_ended(int rank) { ranks_.erase(rank); }

void JobWatch::explain(const RankEnd& end, FailureContext& context) {
  const auto crash = crashes_.find(end.rank);
  const auto ended = ended_because_.find(end.rank);
  if (ended != ended_because_.end()) {
    context.cause = ended->second;
  } else {
    EndEvidence evidence;
    evidence.end = end;
    evidence.last_lines = context.last_lines;
    evidence.before = memory_at_start_;
    evidence.after = read_memory_counters();
    evidence.kernel_kill = kernel_log_.find(end.pid);
    evidence.shared = crash != crashes_.end() ? crash->second.shared : space_of("/dev/shm");
    context.cause = cause_of(evidence);
  }
  if (crash == crashes_.end()) return;
  const ProcessStacks& stacks = crash->second.stacks;
  if (!stacks.threads.empty()) {
    const ThreadFrames& thread = stacks.threads.front();
    if (context.cause.empty()) context.cause = cause_of_crash(end, thread.frames);
    context.stack =
        fmt::format("  where (thread {}):\n{}", thread.name, frames_text(thread.frames, "    "));
  } else {
    context.stack = fmt::format("  where: not known: {}\n", stacks.problem);
  }
}

std::vector<pid_t> JobWatch::stack_helpers() const {
  std::vector<pid_t> pids;
  const auto add = [&](const StackSurvey& survey) {
    for (const pid_t pid : survey.helpers()) pids.push_back(pid);
  };
  if (hang_survey_) add(*hang_survey_);
  for (const auto& [number, survey] : asked_surveys_) add(*survey);
  return pids;
}

void JobWatch::guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    actions_.say(
        fmt::format("paceline: warning: the ranks cannot be inspected: {}\n", error.what()));
  }
}

void JobWatch::answer(JobRequest request) {
  const std::string& what = request.words.empty() ? "" : request.words.front();
  if (what == "describe") return send_answer(request, description());
  if (what == "stacks") return send_stacks(std::move(request));
  if (what == "crash") return on_crash(std::move(request));
  if (what == "stop") answer_stop(request, supervisor_);
}

// Recognizes the process of a rank, and the processes that the rank started, unless they have left
// the rank's process group.
std::optional<int> JobWatch::rank_of(pid_t pid) const {
  const pid_t group = getpgid(pid);
  for (const auto& [rank, process] : ranks_) {
    if (process == pid || process == group) return rank;
  }
  return {};
}

void JobWatch::on_crash(JobRequest request) {
  const auto rank = rank_of(request.sender);
  const int thread = request.words.size() < 3 ? 0 : std::atoi(request.words[1].c_str());
  if (!rank || thread <= 0 || crashes_.contains(*rank)) return;
  Crash& crash = crashes_[*rank];
  crash.shared = space_of("/dev/shm");
  crash.request = std::move(request);
  read_crashes();
}

// Reads the stacks of at most kMaxReaders ranks at a time. If more ranks crash at the same moment,
// the other ranks wait: each of them may be the culprit, whose stack must be known.
void JobWatch::read_crashes() {
  auto reading = std::count_if(crashes_.begin(), crashes_.end(),
                               [](const auto& crash) { return crash.second.reader != nullptr; });
  for (auto& [rank, crash] : crashes_) {
    if (crash.known || crash.reader || reading >= kMaxReaders) continue;
    ++reading;
    try {
      crash.reader = std::make_unique<StackReader>(
          loop_, plan_.options.stack_helper, crash_target(crash.request),
          std::move(crash.request.connection),
          [this, rank = rank](ProcessStacks stacks) { crash_read(rank, std::move(stacks)); });
    } catch (const Error& error) {
      crash.stacks.problem = error.what();
      crash.known = true;
    }
  }
}

void JobWatch::crash_read(int rank, ProcessStacks stacks) {
  Crash& crash = crashes_.at(rank);
  crash.stacks = std::move(stacks);
  crash.known = true;
  crash.reader.reset();
  read_crashes();
}

// Selects for each rank the process that writes its flight record, if there is one: that process is
// the program, even if a shell script started it.
std::map<int, StackReader::Target> JobWatch::targets(const std::vector<Flight>& flights,
                                                     bool inside) const {
  std::map<int, StackReader::Target> targets;
  for (const auto& [rank, pid] : ranks_) {
    StackReader::Target target{pid, {}, false};
    const auto flight =
        std::find_if(flights.begin(), flights.end(), [&, rank = rank](const Flight& other) {
          return other.rank == rank && other.process != FlightProcess::kGone &&
                 rank_of(other.pid) == rank;
        });
    if (flight != flights.end()) target.pid = flight->pid;
    if (inside) {
      target.threads = {target.pid};
      if (flight != flights.end()) {
        for (const FlightOperation& operation : flight->operations) {
          const auto thread = static_cast<pid_t>(operation.thread);
          if (operation.state == FlightState::kStarted && thread != target.pid) {
            target.threads.push_back(thread);
          }
        }
      }
      std::sort(target.threads.begin(), target.threads.end());
      target.threads.erase(std::unique(target.threads.begin(), target.threads.end()),
                           target.threads.end());
    }
    targets[rank] = std::move(target);
  }
  return targets;
}

void JobWatch::send_stacks(JobRequest request) {
  if (ranks_.empty() || asked_surveys_.size() >= kMaxSurveys) {
    return send_answer(request, ranks_.empty() ? "no rank runs on this node\n"
                                               : "too many requests are in progress\n");
  }
  std::vector<Flight> flights;
  std::string sentence;
  try {
    flights = read_flights(folders_.flights).flights;
    sentence = paceline::explain(flights).sentence + "\n\n";
  } catch (const Error&) {
    // There are no records, so the answer has only the stacks.
  }
  const int number = ++num_asked_;
  const auto asked = std::make_shared<JobRequest>(std::move(request));
  asked_surveys_[number] =
      std::make_unique<StackSurvey>(loop_, plan_.options.stack_helper, targets(flights, false),
                                    [this, number, asked, sentence](const RankStacks& stacks) {
                                      send_answer(*asked, sentence + stacks_text(stacks));
                                      asked_surveys_.erase(number);
                                    });
}

std::string JobWatch::description() const {
  nlohmann::ordered_json json;
  const LaunchOptions& options = plan_.options;
  json["job"] = options.run_id;
  json["id_is_shared"] = options.run_id_is_shared();
  json["of_hosts"] = options.part.has_value();
  json["host"] = host_name();
  json["supervisor"] = supervisor_;
  json["launcher"] = getpid();
  json["command"] = options.command;
  json["started"] = started_;
  json["generation"] = place_.generation;
  json["world_size"] = place_.world_size;
  json["num_local_ranks"] = options.num_local_ranks;
  json["log_directory"] = folders_.logs;
  json["flight_directory"] = folders_.flights;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const auto& [rank, pid] : ranks_) {
    nlohmann::ordered_json entry;
    entry["rank"] = rank;
    entry["pid"] = pid;
    entry["cpus"] = plan_.placement.ranks[rank - place_.first_rank].cpus;
    json["ranks"].push_back(std::move(entry));
  }
  return json_text(json) + "\n";
}

namespace {

// How long another host may take to read the stacks of its ranks, end these ranks and report that.
constexpr std::chrono::seconds kTimeToEnd{5};

// Whether the timer has expired since the last call.
bool take(const Fd& timer) {
  std::uint64_t times = 0;
  return read_record(timer.get(), times);
}

}  // namespace

void JobWatch::look_for_hang() {
  if (!take(hang_timer_) || ranks_.empty() || at_rest_) return;
  const bool stands_still = hang_watch_->look(ranks_);
  if (const auto seconds = hang_watch_->take_recovery()) {
    actions_.say(fmt::format("paceline: the job makes progress again, after {:.1f} s\n", *seconds));
  }
  if (stands_still) report_whereabouts(0);
}

void JobWatch::look(const LookOrder& order) {
  guarded([&] { report_whereabouts(order.round); });
}

void JobWatch::report_whereabouts(int round) const {
  const std::chrono::duration<double> limit = plan_.options.hang_timeout;
  Whereabouts report{.generation = place_.generation, .round = round, .limit = limit.count()};
  report.digest = encode_digest(own_flights());
  if (hang_watch_) report.standstill = hang_watch_->standstill(ranks_);
  actions_.report(std::move(report));
}

bool JobWatch::is_own(int rank) const {
  return rank >= place_.first_rank && rank < place_.first_rank + plan_.options.num_local_ranks;
}

// Leaves out ranks of other hosts, which may share the folder.
std::vector<Flight> JobWatch::own_flights() const {
  std::vector<Flight> flights;
  try {
    flights = read_flights(folders_.flights).flights;
  } catch (const Error&) {
    return flights;  // a program that creates no group leaves no records
  }
  std::erase_if(flights, [this](const Flight& flight) { return !is_own(flight.rank); });
  return flights;
}

void JobWatch::show(const HangOrder& hang) {
  if (hang.generation != place_.generation || ranks_.empty()) return;
  if (hang_watch_) hang_watch_->tell(!hang.ranks.empty());
  actions_.say(hang_text(hang));
  const bool named =
      std::any_of(hang.ranks.begin(), hang.ranks.end(), [this](int rank) { return is_own(rank); });
  if (plan_.options.kill_hanging && !hang.ranks.empty() && !named) {
    others_ending_until_ = Deadline::after(kTimeToEnd);
  }
  if (!named && !is_own(hang.witness)) return;
  try {
    hang_survey_ = std::make_unique<StackSurvey>(loop_, plan_.options.stack_helper,
                                                 targets(own_flights(), true),
                                                 [this, hang](const RankStacks& stacks) {
                                                   actions_.say(stacks_text(stacks));
                                                   tell(hang);
                                                   hang_survey_.reset();
                                                 });
  } catch (const Error& error) {
    actions_.say(
        fmt::format("paceline: warning: the ranks cannot be inspected: {}\n", error.what()));
    tell(hang);
  }
}

void JobWatch::look_for_straggler() {
  if (!take(straggler_timer_) || ranks_.empty() || at_rest_) return;
  // Starts a new watch if this process was stopped (AwakeClock) within the last
  // `straggler_patience`: no rank is blamed for waits in that time.
  const auto awake = AwakeClock::now() - AwakeClock::woke();
  if (awake < plan_.options.straggler_patience) return make_straggler_watch();
  if (straggler_report_) return report_shares();
  const auto said = straggler_watch_->look(ranks_);
  if (said) actions_.say(fmt::format("paceline: {}\n", *said));
}

void JobWatch::report_shares() {
  actions_.report(Shares{place_.generation, straggler_report_->look(own_flights(), ranks_)});
}

void JobWatch::show(const StragglerOrder& straggler) {
  const auto rank = ranks_.find(straggler.rank);
  if (straggler.generation != place_.generation || rank == ranks_.end()) return;
  if (!straggler_report_) return;
  const std::string text = straggler_report_->text(straggler, rank->second);
  if (!text.empty()) actions_.say(fmt::format("paceline: {}\n", text));
}

void JobWatch::tell(const HangOrder& hang) {
  if (!plan_.options.kill_hanging) {
    actions_.say(
        fmt::format("  nothing is ended; {}, --hang-action kill would end the job\n", advice()));
  } else if (hang.ranks.empty()) {
    actions_.say(fmt::format(
        "  nothing is ended: cannot tell which rank is blocking the others; {}\n", advice()));
  } else {
    end_hanging(hang);
  }
}

// Names a command that shows the stacks of this job on this host.
std::string JobWatch::advice() const {
  const LaunchOptions& options = plan_.options;
  const std::string job = options.run_id_is_shared() ? fmt::to_string(supervisor_) : options.run_id;
  return fmt::format("paceline stacks {}{} shows every thread", shell_quoted(job),
                     options.several_nodes() ? " on host " + host_name() : "");
}

// Ends the ranks of this node that block the others.
void JobWatch::end_hanging(const HangOrder& hang) {
  std::vector<int> ranks;
  for (const int rank : hang.ranks) {
    if (ranks_.contains(rank)) ranks.push_back(rank);
  }
  for (const int rank : ranks) {
    ended_because_[rank] = fmt::format(
        "ended by paceline after {:.1f} s without progress (--hang-action kill)", hang.seconds);
  }
  for (const int rank : ranks) actions_.kill(rank);
}

}  // namespace paceline::launcher
