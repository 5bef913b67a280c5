#include "paceline/launcher/job/generation.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/descendants.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"

namespace paceline::launcher {

namespace {

using namespace std::chrono_literals;

// After a failure the other ranks cannot do useful work any more, so they get less time than after
// a Ctrl-C.
constexpr std::chrono::nanoseconds kLongestGraceAfterFailure = 5s;
constexpr std::chrono::nanoseconds kEndOfDescendants = 5s, kSlice = 50ms;
constexpr std::chrono::nanoseconds kLookForHandlers = 100ms;
constexpr std::chrono::nanoseconds kDeath = 1s;  // how long a signal may take to end a process
// kWrapper: how long a wrapper of a program, such as a script, may take to end after the program.
// kLastWork: how long a rank that aborted its group may take to exit, because it may be writing a
// checkpoint.
constexpr std::chrono::nanoseconds kWrapper = 500ms, kLastWork = 5s;
constexpr int kShownLines = 20;

// Whether the signal ended the rank, or ended a program that the rank ran: a shell then exits with
// 128 + signal.
bool ended_by(const RankEnd& end, int signal) { return end.status() == 128 + signal; }
bool ended_by_stop_signal(const RankEnd& end) {
  return std::ranges::any_of(kStopSignals, [&](int signal) { return ended_by(end, signal); });
}

}  // namespace

Generation::Generation(const GenerationContext& context, const NodePlace& place,
                       const JobServices& services, int stdin_fd)
    : context_(context), place_(place) {
  const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  context_.flights.begin_generation();
  context_.watch.begin_generation(place_);
  context_.seeds.begin_generation();
  for (int i = 0; i < context_.plan.options.num_local_ranks; ++i) {
    const bool reads = place_.rank_of(i) == 0 && stdin_fd >= 0;
    ranks_.push_back(start_rank(i, services, reads ? stdin_fd : null_fd.get()));
    context_.watch.rank_started(ranks_.back()->rank(), ranks_.back()->process().pid);
    ++num_running_;
    watch_rank(ranks_.size() - 1);
  }
  if (place_.generation == 0) watch_first_rank();
}

Generation::~Generation() {
  for (const auto& rank : ranks_) {
    context_.loop.forget(rank->process().pidfd.get());
    for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
      if (rank->output().is_open(stream)) context_.loop.forget(rank->output().pipe(stream));
    }
  }
  if (watch_) context_.loop.forget(watch_->timer());
}

std::unique_ptr<RankProcess> Generation::start_rank(int local_rank, const JobServices& services,
                                                    int stdin_fd) {
  const LaunchPlan& plan = context_.plan;
  const int rank = place_.rank_of(local_rank);
  const Fd secret = services.make_secret_fd();
  JobAddresses addresses = services.addresses();
  addresses.secret_fd = secret.get();
  ProcessSpec spec;
  spec.path = plan.program_path;
  spec.command = plan.options.command;
  spec.environment = worker_environment(inherited_environment(), plan.options, place_, local_rank,
                                        plan.placement, addresses);
  context_.flights.add_variables(spec.environment);
  context_.memory.add_variables(spec.environment);
  context_.timeline.add_variables(spec.environment, rank, place_.generation);
  context_.watch.add_variables(spec.environment);
  set_terminal(spec.environment, plan.options, place_, local_rank);
  RankStdout out = make_rank_stdout();
  if (!out.problem.empty()) {
    no_terminal_because_ = out.problem;
    spec.environment.try_emplace("PYTHONUNBUFFERED", "1");
  }
  if (plan.placement.bound) {
    spec.cpus = plan.placement.ranks[local_rank].cpus;
    spec.numa_nodes = plan.placement.ranks[local_rank].numa_nodes;
  }
  spec.stdin_fd = stdin_fd;
  spec.inherited = {secret.get()};
  const std::string prefix = plan.options.prefix_of(place_.short_name_of(rank));
  auto output = std::make_unique<RankOutput>(context_.logs.open_log(rank, place_.generation),
                                             console_of(local_rank), prefix);
  return std::make_unique<RankProcess>(
      rank, std::move(spec), std::move(out.ends), std::move(output),
      [&](const ProcessSpec& ready) { return context_.seeds.start(local_rank, ready); });
}

std::array<Console*, 2> Generation::console_of(int local_rank) {
  const ConsoleStreams shown =
      context_.plan.options.streams_shown(local_rank, place_.rank_of(local_rank));
  return {shown.out ? &context_.consoles.out() : nullptr,
          shown.err ? &context_.consoles.err() : nullptr};
}

void Generation::watch_rank(std::size_t index) {
  const RankProcess& rank = *ranks_[index];
  context_.loop.watch(rank.process().pidfd.get(), [this, index] { on_end(index); });
  for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
    context_.loop.watch(ranks_[index]->output().pipe(stream),
                        [this, index, stream] { read(index, stream); });
  }
}

// Watches only the first rank of the first generation, because all ranks run the same program.
void Generation::watch_first_rank() {
  const RankProcess& first = *ranks_.front();
  watch_.emplace(first.rank(), first.process().pid, context_.plan.placement.ranks.front());
  context_.loop.watch(watch_->timer(), [this] { on_watch(); });
}

void Generation::on_watch() {
  if (!ranks_.front()->running()) {
    context_.loop.forget(watch_->timer());
    return watch_.reset();
  }
  for (const Warning& warning : watch_->look()) {
    context_.consoles.say(fmt::format("paceline: warning: {}\n", to_text(warning)));
  }
}

void Generation::on_end(std::size_t index) {
  RankProcess& rank = *ranks_[index];
  context_.loop.forget(rank.process().pidfd.get());
  if (!ending()) leftovers_.look_at_group(rank.rank(), rank.process().pid);
  const RankEnd end = rank.collect();
  drain(rank.output());
  if (end.failed() && (end.signal == 0 || end.signal == SIGABRT)) look_for_deaths();
  context_.watch.rank_ended(end.rank);
  ends_.push_back(end);
  --num_running_;
  if (end.stopped_as_agreed() && !winds_up_) ++num_stopped_;
  if (!end.failed() || end.stopped_as_agreed()) {
    if (!end.failed() && !culprit_) finished_.push_back(end.rank);
    return;
  }
  if (ending()) return take_later_end(rank, end);
  if (may_have_followed(rank) || may_belong_to_a_stop(end))
    return undecided_.push_back({&rank, end});
  const auto first = std::ranges::find_if(
      undecided_, [](const auto& undecided) { return ended_by_stop_signal(undecided.second); });
  if (first == undecided_.end()) return become_culprit(rank, end);
  const auto [struck, its_end] = *first;  // the signal was meant for this rank alone
  undecided_.push_back({&rank, end});
  become_culprit(*struck, its_end);
}

void Generation::become_culprit(RankProcess& rank, const RankEnd& end) {
  culprit_ = end;
  unreported_ = &rank;
  for (const auto& [other, earlier] : std::exchange(undecided_, {}))
    if (other != &rank) take_later_end(*other, earlier);
  report_when_known();
  if (when_failed_) when_failed_();
  stop(SIGTERM, std::min(kLongestGraceAfterFailure, context_.plan.options.shutdown_timeout));
}

void Generation::take_later_end(const RankProcess& rank, const RankEnd& end) {
  const bool fellow = culprit_ && may_be_fellow(*culprit_, end) && !accused_by(rank) &&
                      !was_killed_on_purpose(rank.rank());
  (fellow ? fellows_ : followers_).push_back(end);
}

void Generation::look_for_deaths() {
  if (ending()) return;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i]->running()) continue;
    if (died_of_signal(ranks_[i]->process(), Deadline::after(kDeath))) return on_end(i);
  }
}

// Whether the rank accuses another rank of this node that is still running. The accused rank may be
// about to end, and would then be the culprit, so the decision waits for its end, and this function
// sets the time limit. Other nodes learn of the failure only after this wait.
bool Generation::may_have_followed(const RankProcess& rank) {
  const auto accused = accused_by(rank);
  if (!accused || !is_running(accused->rank)) return false;
  if (undecided_.empty())
    undecided_until_ = Deadline::after(accused->has_aborted ? kLastWork : kWrapper);
  return true;
}

// Whether the rank was killed by a signal that may be meant for the whole job. If so, sets the time
// limit for the decision. systemd and batch systems may signal every process of a job at once, and
// a rank may die before the launcher receives the signal.
bool Generation::may_belong_to_a_stop(const RankEnd& end) {
  if (!ended_by_stop_signal(end)) return false;
  if (undecided_.empty()) undecided_until_ = Deadline::after(kWrapper);
  return true;
}

// Makes the first of the undecided ranks the culprit, once the time limit has passed, nothing is
// left to wait for, or the ranks are being stopped.
void Generation::decide() {
  if (undecided_.empty()) return;
  const bool waits = std::ranges::any_of(undecided_, [this](const auto& undecided) {
    const auto accused = accused_by(*undecided.first);
    return (accused && is_running(accused->rank)) || ended_by_stop_signal(undecided.second);
  });
  if (waits && stopping_ == Stopping::kNo && !undecided_until_.expired()) return;
  const auto [rank, end] = undecided_.front();
  become_culprit(*rank, end);
}

bool Generation::is_running(int rank) const {
  const int local_rank = rank - place_.first_rank;
  return local_rank >= 0 && local_rank < static_cast<int>(ranks_.size()) &&
         ranks_[static_cast<std::size_t>(local_rank)]->running();
}

std::optional<AccusedRank> Generation::accused_by(const RankProcess& rank) const {
  const auto accused = accused_rank(rank.output().last_lines(kShownLines));
  return accused ? accused : accused_rank(context_.flights.failure_of(rank.rank()));
}

bool Generation::stopped_as_agreed() const {
  return !culprit_ && num_stopped_ > 0 &&
         (stopping_ == Stopping::kNo || winds_up_ || num_stopped_ == ranks_.size());
}

bool Generation::work_is_done() const {
  return some_serve(place_.roles) && !ending() && undecided_.empty() &&
         std::ranges::all_of(ranks_, [this](const auto& rank) {
           return !rank->running() || place_.role_of(rank->rank()).serves;
         });
}

void Generation::wind_up(std::chrono::nanoseconds grace) {
  if (ending()) return;
  winds_up_ = true;
  stop(SIGTERM, grace);
}

void Generation::read(std::size_t index, int stream) {
  RankOutput& output = ranks_[index]->output();
  const int pipe = output.pipe(stream);
  output.read_some(stream);
  if (!output.is_open(stream)) context_.loop.forget(pipe);
}

void Generation::drain(RankOutput& output) {
  const std::array pipes = {output.pipe(0), output.pipe(1)};
  output.drain();
  for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
    if (!output.is_open(stream)) context_.loop.forget(pipes[stream]);
  }
}

void Generation::stop(int signal, std::chrono::nanoseconds grace) {
  context_.flights.read([this] { return ends_so_far(); },
                        culprit_);  // before the ranks leave their operations
  for (const auto& rank : ranks_) {
    rank->send(signal);
    rank->send(SIGCONT);  // a stopped process would handle no signal except SIGKILL
  }
  if (stopping_ != Stopping::kNo) return;
  std::erase_if(undecided_, [&](const auto& undecided) {
    const auto& [rank, end] = undecided;
    const bool was_stopped = ended_by(end, signal);
    if (was_stopped) take_later_end(*rank, end);
    return was_stopped;
  });
  stopping_ = Stopping::kAsked;
  kill_at_ = Deadline::after(grace);
  grace_ = fmt::format("within {:g} s of {}", std::chrono::duration<double>(grace).count(),
                       signal_name(signal));
}

void Generation::kill(const std::string& limit) {
  stopping_ = Stopping::kKilled;
  if (killed_.empty()) {
    killed_limit_ = limit;
    for (const auto& rank : ranks_) {
      if (rank->running()) killed_.push_back(rank->rank());
    }
  }
  send(SIGKILL);
}

void Generation::send(int signal) {
  for (const auto& rank : ranks_) rank->send(signal);
}

void Generation::send_when_handled(int signal) {
  for (const auto& rank : ranks_) unsent_.emplace_back(rank.get(), signal);
}

bool Generation::send_to(int rank, int signal) {
  const int local_rank = rank - place_.first_rank;
  if (local_rank < 0 || local_rank >= static_cast<int>(ranks_.size())) return false;
  const RankProcess& process = *ranks_[static_cast<std::size_t>(local_rank)];
  process.send(signal);
  return process.running();
}

// The ends of ranks so far, including ends that the loop has not handled yet; these are last, in no
// particular order.
std::vector<RankEnd> Generation::ends_so_far() const {
  std::vector<RankEnd> ends = ends_;
  for (const auto& rank : ranks_) {
    if (!rank->running()) continue;
    siginfo_t info{};
    const pid_t pid = rank->process().pid;
    const auto id = static_cast<id_t>(pid);
    if (waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    RankEnd end{.rank = rank->rank(), .pid = pid};
    (info.si_code == CLD_EXITED ? end.exit_code : end.signal) = info.si_status;
    ends.push_back(end);
  }
  return ends;
}

bool Generation::kill_on_purpose(int rank, const std::string& because) {
  if (!send_to(rank, SIGKILL)) return false;
  killed_on_purpose_.insert(rank);
  context_.watch.ended_because(rank, because);
  return true;
}

void Generation::tend() {
  decide();
  std::erase_if(unsent_, [](const auto& unsent) {
    const auto& [rank, signal] = unsent;
    if (rank->running() && !rank->handles(signal)) return false;
    rank->send(signal);
    return true;
  });
  if (stopping_ == Stopping::kAsked && put_off(kill_at_).expired()) kill(grace_);
  report_when_known();
  if (num_running_ == 0 && undecided_.empty() && !over_ && unreported_ == nullptr) close_outputs();
  hold_back_or_resume();
}

Deadline Generation::next_deadline() const {
  if (descendants_until_ && !over_ && !descendants_until_->expired()) return Deadline::after(0ns);
  if (stopping_ == Stopping::kAsked) return put_off(kill_at_);
  if (!undecided_.empty()) return undecided_until_;
  return unsent_.empty() ? Deadline::never() : Deadline::after(kLookForHandlers);
}

bool Generation::owns(pid_t pid) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
    return rank->running() && rank->process().pid == pid;
  });
}

// Ends the remaining descendants of the ranks, including processes that left the ranks' process
// groups, so that no process holds a pipe open. Then closes the pipes. The generation is not over
// while output waits for a console.
void Generation::close_outputs() {
  if (!descendants_until_) {
    if (!ending()) {
      std::vector<pid_t> own = context_.seeds.pids();
      for (const pid_t pid : context_.watch.stack_helpers()) own.push_back(pid);
      leftovers_.look_for_strays(own);
    }
    descendants_until_ = Deadline::after(kEndOfDescendants);
  }
  // Waits only for a slice of the time in each call, because other nodes need signs of life.
  const bool all_ended = end_all_descendants(Deadline::after(kSlice), context_.seeds.pids());
  if (!all_ended && !descendants_until_->expired()) return;
  bool all_closed = true;
  for (const auto& rank : ranks_) {
    RankOutput& output = rank->output();
    drain(output);
    for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
      if (!output.is_open(stream)) continue;
      if (output.is_held_up(stream)) {
        all_closed = false;
        continue;
      }
      context_.loop.forget(output.pipe(stream));
      output.close(stream);
    }
  }
  over_ = all_closed;
}

// Stops reading a rank's output while its console is full.
void Generation::hold_back_or_resume() {
  for (const auto& rank : ranks_) {
    RankOutput& output = rank->output();
    for (int stream = 0; stream < RankOutput::kNumStreams; ++stream) {
      if (!output.is_open(stream) || !output.hold_changed(stream)) continue;
      context_.loop.change(output.pipe(stream), output.is_held_up(stream) ? 0U : EPOLLIN);
    }
  }
}

void Generation::report_when_known() {
  if (unreported_ == nullptr || context_.watch.holds_back(unreported_->rank())) return;
  report(*std::exchange(unreported_, nullptr));
}

void Generation::report(RankProcess& culprit) {
  const LogDirectory& logs = context_.logs;
  FailureContext context;
  context.name = place_.name_of(culprit.rank());
  context.host = host_name();
  context.last_lines = culprit.output().last_lines(kShownLines);
  if (logs.problem().empty()) context.log_path = logs.path_of(culprit.rank());
  context.finished = finished_;
  context_.watch.explain(*culprit.end(), context);
  cause_ = context.cause;
  if (when_reported_) when_reported_(failure_report(*culprit.end(), context));
}

std::string Generation::closing_words() const {
  if (!culprit_) return leftovers_.text() + killed_summary(killed_, killed_limit_);
  return fellows_summary(fellows_) + followers_summary(followers_) +
         killed_summary(killed_, killed_limit_);
}

std::chrono::duration<double> Generation::age() const {
  return std::chrono::steady_clock::now() - started_;
}

std::string Generation::log_problem() const {
  for (const auto& rank : ranks_) {
    const std::string& reason = rank->output().log_problem();
    if (reason.empty()) continue;
    return fmt::format("{} is incomplete: {}", context_.logs.path_of(rank->rank()), reason);
  }
  return "";
}

std::vector<int> Generation::ranks() const {
  std::vector<int> ranks;
  for (const auto& rank : ranks_) ranks.push_back(rank->rank());
  return ranks;
}

}  // namespace paceline::launcher
