#include "paceline/launcher/job/agent.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/messages/clock_comparison.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndOfJobsDescendants = 5s;
// How long ranks may take to end after an order to stop, and after the loss of a host, when they
// could only wait for the lost host.
constexpr std::chrono::nanoseconds kGraceOfOthers = 5s, kGraceAfterLoss = 500ms;
// How long the last messages to other agents may take to be sent at the end of the job.
constexpr auto kLastWords = 2s;

double seconds() {
  return std::chrono::duration<double>(Deadline::Clock::now().time_since_epoch()).count();
}

Deadline sooner(Deadline a, Deadline b) { return a.moment() < b.moment() ? a : b; }

// The owner of the logs, for the claim on their folder (launcher/output/log_directory.h).
std::string owner_of_logs(const LaunchOptions& options) {
  if (options.part) return fmt::format("job {}", options.run_id);
  if (options.several_nodes()) {
    return fmt::format("job {} at port {}", options.run_id, options.meeting.endpoint.port);
  }
  return fmt::format("job {}, process {} on host {}", options.run_id, getpid(), host_name());
}

}  // namespace

Agent::Agent(const LaunchPlan& plan, AgentChannel channel, EventLoop& loop, Consoles& consoles)
    : plan_(plan),
      channel_(std::move(channel)),
      loop_(loop),
      consoles_(consoles),
      logs_(plan.options.log_dir, owner_of_logs(plan.options)),
      flights_(inherited_environment(), logs_.usable_path()),
      timeline_(plan.options.timeline, logs_.usable_path(), plan.options.several_nodes()),
      watch_(loop_, plan, {logs_.usable_path(), flights_.directory()},
             {[this](const std::string& text) { consoles_.say(text); },
              [this](int rank) { generation_->send_to(rank, SIGKILL); },
              [this](const Report& report) { membership_.report(report); },
              [this] { return meeting(); }}),
      seeds_(plan.program_path, plan.options.fork_server && plan.options.may_restart(),
             [this](const std::string& text) { consoles_.say(text); }),
      chaos_(plan.options.chaos, plan.options.chaos_seed, consoles_, flights_),
      orphans_(loop_),
      membership_(loop_, plan.options, consoles_) {}

int Agent::run() {
  require_descriptors(plan_.options.num_local_ranks);
  loop_.watch(channel_.control.get(), [this] { on_control(); });
  if (!logs_.notice().empty()) {
    consoles_.say(fmt::format("paceline: warning: {}\n", logs_.notice()));
  }
  membership_.seek();
  follow_orders();
  loop();
  if (abandoned_) end_all_descendants(Deadline::after(kEndOfJobsDescendants));
  if (abandoned_ && !concluded_ && stop_signal_ == 0) {
    finish_timeline();
    // The supervisor has ended, so the user would not learn where the temporary logs are.
    remove_records();
  }
  if (logs_may_go_ && consoles_.lost().empty()) logs_.remove_if_temporary();
  return exit_code();
}

// --- The coordinator ---

// Handling one order may queue another, or lead to another coordinator.
void Agent::follow_orders() {
  while (JobControl* const coordinator = membership_.coordinator()) {
    const std::vector<Order> orders = coordinator->take_orders();
    if (orders.empty()) return;
    for (const Order& order : orders) {
      std::visit([this](const auto& one) { obey(one); }, order);
    }
  }
}

void Agent::obey(const StartOrder& order) {
  if (ending()) return;
  if (generation_ && generation_->culprit()) {
    const std::string sentence = flights_.sentence(/*waited_long=*/false);
    if (!sentence.empty()) consoles_.say(fmt::format("paceline: {}\n", sentence));
  }
  if (!order.note.empty()) {
    say_of_job(fmt::format("paceline: generation {}: {}\n", order.place.generation, order.note));
  }
  remove_old_flights(order.place);
  generation_.reset();
  held_back_.clear();
  failed_first_ = false;
  work_done_ = false;
  stage_ = Stage::kRunning;
  membership_.begin(order);
  const GenerationContext context{plan_,   loop_,     consoles_, logs_, flights_,
                                  memory_, timeline_, watch_,    seeds_};
  generation_ = std::make_unique<Generation>(context, order.place, membership_.services(),
                                             channel_.stdin_fd.get());
  if (watch_.at_rest()) generation_->send(SIGTSTP);
  for (const int signal : std::exchange(late_signals_, {})) generation_->send_when_handled(signal);
  generation_->when_failed([this] { on_failure(); });
  generation_->when_reported([this](const std::string& report) { say_of_failure(report); });
  tally_.started(seconds());
  // Keeps the input open if the job may restart: a new rank 0 continues to read where the old one
  // stopped.
  if (!plan_.options.may_restart()) channel_.stdin_fd.reset();
  membership_.services().start_store();
}

// Removes the flight records of an older generation, or of an older job in the same folder. Keeps
// the records of ranks that now belong to another node: they may already run and record in the same
// folder.
void Agent::remove_old_flights(const NodePlace& place) const {
  std::vector<int> ranks;
  for (int i = 0; i < plan_.options.num_local_ranks; ++i) ranks.push_back(place.rank_of(i));
  if (generation_) {
    for (const int rank : generation_->ranks()) {
      if (rank >= place.world_size) ranks.push_back(rank);
    }
  }
  flights_.remove(ranks);
}

void Agent::obey(const StopOrder& order) {
  if (!generation_ || stops()) return;
  stopped_for_ = order.reason;
  if (stage_ == Stage::kFinished) return report_stopped();
  stage_ = Stage::kStopping;
  generation_->look_for_deaths();  // a death on this node may have made the reported rank fail
  // On a shared console the user sees the report of the failed rank instead.
  const bool shown = shares_console() && order.failed == Failure::Kind::kRank;
  if (!generation_->culprit() && !shown) {
    say_of_job(fmt::format("paceline: {}; stopping the ranks of {}\n", order.reason,
                           shares_console() ? "all hosts" : "this node"));
  }
  stop_ranks(order.failed == Failure::Kind::kHost ? kGraceAfterLoss : kGraceOfOthers);
}

void Agent::obey(const WaitOrder& order) {
  say_of_job(fmt::format("paceline: {}\n", order.reason));
}

void Agent::obey(HangOrder order) {
  if (shares_console() && !membership_.leads()) order.sentence.clear();
  watch_.show(order);
}

void Agent::obey(const FirstFailureOrder& order) {
  if (!generation_ || generation_->place().generation != order.generation) return;
  failed_first_ = true;
  say_held_back();
}

// No rank runs here when this order arrives, because a coordinator gives way only while it gathers
// nodes.
void Agent::obey(const FollowOrder& order) {
  if (ending()) return;
  consoles_.say(fmt::format("paceline: the job goes on with more nodes at {}; joining them\n",
                            to_string(order.leader)));
  membership_.follow(order.leader);
}

void Agent::obey(const WindUpOrder& order) {
  if (!running() || generation_->place().generation != order.generation || stops()) return;
  if (generation_->num_running() > 0) {
    say_of_job(
        "paceline: the ranks that the job waits for have ended; stopping the ranks that serve\n");
  }
  generation_->wind_up(plan_.options.shutdown_timeout);
}

void Agent::obey(const EndOrder& order) {
  if (end_) return;
  end_ = order;
  held_back_.clear();
  if (!order.alone) consoles_.tell_over(order.exit_code);
  if (running()) stop_ranks(kGraceOfOthers);
}

void Agent::stop_ranks(std::chrono::nanoseconds grace) {
  generation_->stop(SIGTERM, std::min(grace, plan_.options.shutdown_timeout));
}

// The ranks on the coordinator's host have ended or cannot be reached, so the successor begins a
// new generation.
void Agent::on_coordinator_lost() {
  const std::string cause = membership_.lose_coordinator();
  say_held_back();
  if (ending()) return;
  if (!membership_.has_begun()) {
    consoles_.say(
        fmt::format("paceline: lost {}, before the job began; looking for it again\n", cause));
    return;
  }
  stage_ = all_ended() ? Stage::kStopped : Stage::kStopping;
  if (running()) stop_ranks(kGraceAfterLoss);
  if (!membership_.may_have_a_successor()) {
    const RestartBudget restarts = membership_.terms().restarts;
    return obey(EndOrder{.exit_code = kExitEnvironment,
                         .cause = "the loss of " + cause,
                         .reason = restarts.max_restarts > 0 ? used_up_text(restarts) : ""});
  }
  consoles_.say(fmt::format("paceline: lost {}; looking for another one\n", cause));
}

// Prints a message about the whole job. On a shared console, only the node that leads prints such a
// message, or a node that has no coordinator.
void Agent::say_of_job(const std::string& text) {
  const bool others_say_it = membership_.coordinator() != nullptr && !membership_.leads();
  if (!shares_console() || !others_say_it) consoles_.announce(text);
}

// Prints a message about a failure. On a shared console it is held back until the failure is known
// to be the first of the job: the other failures are mostly consequences.
void Agent::say_of_failure(const std::string& text) {
  if (!shares_console() || failed_first_) return consoles_.announce(text);
  held_back_ += text;
}

void Agent::say_held_back() { consoles_.announce(std::exchange(held_back_, "")); }

void Agent::report_stopped() {
  stage_ = Stage::kStopped;
  const Offer offer = membership_.offer_anew();
  const auto steps = flights_.steps(generation_->ranks());
  membership_.report(
      Stopped{.generation = generation_->place().generation,
              .lived = std::chrono::duration_cast<std::chrono::milliseconds>(generation_->age()),
              .steps = steps ? std::optional(steps->steps) : std::nullopt,
              .offer = offer});
}

Absence Agent::meeting() {
  if (!generation_) return {};
  return membership_.services().meeting(generation_->place().generation,
                                        generation_->place().world_size);
}

// --- The ranks ---

void Agent::on_failure() {
  const RankEnd& culprit = *generation_->culprit();
  own_cause_ = fmt::format("{} on host {}: {}", generation_->place().name_of(culprit.rank),
                           membership_.host(), describe(culprit));
  membership_.report(RankFailure{generation_->place().generation,
                                 {.cause = own_cause_,
                                  .end = describe(culprit),
                                  .exit_code = culprit.status(),
                                  .signal = culprit.signal,
                                  .reason = short_reason(generation_->cause()),
                                  .on_purpose = generation_->was_killed_on_purpose(culprit.rank),
                                  .at = clock_reading(culprit.at)}});
}

// Reports that the work on this node is done, without waiting for the ranks that serve.
void Agent::on_work_done() {
  work_done_ = true;
  membership_.report(WorkDone{generation_->place().generation});
}

void Agent::on_generation_over() {
  const bool in_order = !generation_->culprit() && !stops();
  stage_ = in_order ? Stage::kFinished : Stage::kStopped;
  tally_.ended(seconds(), flights_.steps(generation_->ranks()));
  if (generation_->culprit()) {
    say_of_failure(generation_->closing_words());
  } else {
    consoles_.say(generation_->closing_words());
  }
  if (ending() || membership_.coordinator() == nullptr) return;
  if (!in_order) return report_stopped();
  membership_.report(Finished{generation_->place().generation, generation_->stopped_as_agreed()});
}

// --- The process ---

void Agent::loop() {
  while (!finished()) {
    loop_.turn(next_deadline());
    reap_orphans();
    if (running()) tend_chaos();
    if (generation_) generation_->tend();
    warn_about_output();
    if (stage_ == Stage::kRunning && !work_done_ && generation_->work_is_done()) on_work_done();
    if (!all_ended() && generation_->over()) on_generation_over();
    if (JobControl* const coordinator = membership_.coordinator()) {
      coordinator->tend();
      follow_orders();
      if (membership_.coordinator_is_lost()) on_coordinator_lost();
    } else if (!running() && !ending() && membership_.seek_at().expired()) {
      membership_.seek();
      follow_orders();
    }
    if (!concluded_ && !running() && ending()) conclude();
    consoles_.watch_for_room();
  }
}

void Agent::tend_chaos() {
  chaos_.tend({generation_->place().world_size,
               [this](int rank, int signal) { return generation_->send_to(rank, signal); },
               [this](int rank, const std::string& why) {
                 return generation_->kill_on_purpose(rank, why);
               }});
}

// Warns about problems with the output of the ranks, once about each problem.
void Agent::warn_about_output() {
  const auto warn = [this](bool& warned, const std::string& problem, const std::string& more) {
    if (problem.empty()) return;
    warned = true;
    consoles_.say(fmt::format("paceline: warning: {}{}\n", problem, more));
  };
  if (generation_ && !warned_about_logs_) {
    warn(warned_about_logs_, logs_.problem().empty() ? generation_->log_problem() : logs_.problem(),
         "; the job goes on");
  }
  if (generation_ && !warned_about_terminals_ && !generation_->no_terminal_because().empty()) {
    warn(warned_about_terminals_,
         fmt::format("no pseudo-terminal for the ranks' stdout ({})",
                     generation_->no_terminal_because()),
         ", which is a pipe now: programs other than Python print late, unless they flush");
  }
  if (const std::string lost = consoles_.lost(); !warned_about_console_ && !lost.empty()) {
    const std::string logs = logs_.usable_path();
    warn(warned_about_console_, "output of the ranks could not be written to " + lost,
         logs.empty() ? "" : "; it is complete in " + logs);
  }
}

Deadline Agent::next_deadline() const {
  const JobControl* const coordinator = membership_.coordinator();
  Deadline next = running() ? Deadline::never() : membership_.seek_at();
  if (coordinator != nullptr) next = coordinator->next_deadline();
  if (generation_) next = sooner(next, generation_->next_deadline());
  next = sooner(next, chaos_.next_deadline(running()));
  return concluded_ ? sooner(next, *concluded_) : next;
}

bool Agent::finished() const {
  if (abandoned_) return true;
  if (!concluded_ || !consoles_.empty()) return false;
  const JobControl* const coordinator = membership_.coordinator();
  return coordinator == nullptr || coordinator->flushed() || concluded_->expired();
}

void Agent::on_control() {
  const auto next = channel_.next_signal();
  if (!next) return;
  const int signal = *next;
  if (signal == SIGTSTP || signal == SIGCONT) watch_.rest(signal == SIGTSTP);
  if (signal == 0) {
    abandoned_ = true;
  } else if (is_for_ranks(signal)) {
    if (generation_) generation_->send(signal);
    const bool ranks_last = running() && !stops() && !generation_->culprit();
    if (!ranks_last && (signal == SIGUSR1 || signal == SIGUSR2)) late_signals_.insert(signal);
  } else {
    on_signal(signal);
  }
}

void Agent::on_signal(int signal) {
  if (stop_signal_ == 0) {
    stop_signal_ = signal;
    if (running()) generation_->stop(signal, plan_.options.shutdown_timeout);
    membership_.report(Leaving{signal});
  } else if (signal == SIGINT) {
    if (generation_) generation_->kill("before the second SIGINT");
    // Do not wait until the remaining output has been read.
    if (!generation_ || generation_->num_running() == 0) abandoned_ = true;
  }
}

// Reaps orphans that have ended, but no ranks: their generation reaps them, in the order in which
// they ended.
void Agent::reap_orphans() {
  if (!orphans_.may_wait()) return;
  seeds_.pids();  // lets seeds_ notice a seed that has ended before orphans_ reaps it
  orphans_.reap([this](pid_t pid) { return generation_ && generation_->owns(pid); });
}

// --- The end ---

NodeEnd Agent::node_end() const {
  NodeEnd end{.order = end_, .stop_signal = stop_signal_, .is_abandoned = abandoned_};
  if (generation_) {
    end.ranks_agreed = generation_->stopped_as_agreed();
    end.culprit = generation_->culprit();
  }
  return end;
}

void Agent::conclude() {
  concluded_ = Deadline::after(kLastWords);
  say_held_back();
  finish_timeline();
  say_tally();
  const NodeEnd end = node_end();
  switch (end.manner()) {
    case NodeEnd::Manner::kAgreed:
      say_of_job(
          fmt::format("paceline: all ranks stopped as agreed; start the job again to continue "
                      "(exit code {})\n",
                      kStoppedAsAgreed));
      return remove_records();
    case NodeEnd::Manner::kStopped: {
      const std::string logs = logs_.usable_path();
      consoles_.say(fmt::format("paceline: stopped by {}; all ranks have ended{}\n",
                                signal_name(stop_signal_),
                                logs.empty() ? "" : fmt::format(" (logs: {})", logs)));
      consoles_.say(flights_.text(true));
      return;
    }
    case NodeEnd::Manner::kDone:
      explain_end();
      return remove_records();
    case NodeEnd::Manner::kFailed:
      if (!shares_console() || failed_first_) consoles_.say(flights_.text(!end.culprit));
      if (end_) explain_end();
      if (!generation_) remove_records();
      return;
  }
}

// Writes the trace. In a job of --hosts the launcher of the job writes it, so the timelines are
// sent to that launcher.
void Agent::finish_timeline() {
  consoles_.say(plan_.options.part ? timeline_.hand_over([this](const std::string& packed) {
    consoles_.tell_timeline(packed);
  })
                                   : timeline_.finish());
}

// Prints how the time was spent, if the run had more than one generation or --chaos was given.
void Agent::say_tally() {
  const std::string faults = chaos_.summary();
  if (tally_.num_generations() == 0 || (tally_.num_generations() == 1 && faults.empty())) return;
  consoles_.say(fmt::format(
      "paceline: the run on this node\n{}{}",
      faults.empty() ? "" : fmt::format("  faults                {}\n", faults), tally_.text()));
}

void Agent::explain_end() {
  const bool said = end_->cause == own_cause_ || (shares_console() && end_->cause == stopped_for_);
  if (!end_->cause.empty() && !said) {
    say_of_job(fmt::format("paceline: the job ended because of {}\n", end_->cause));
  }
  if (!end_->reason.empty()) say_of_job(fmt::format("paceline: {}\n", end_->reason));
}

void Agent::remove_records() {
  if (generation_) flights_.remove(generation_->ranks());
  // Keeps the logs of several generations, because the report of a failure may have named a log.
  if (!generation_ || generation_->place().generation == 0) logs_may_go_ = true;
}

// The exit code is not 0 if output was lost, so that incomplete output is not taken for complete.
int Agent::exit_code() const {
  const int code = node_end().exit_code();
  return code == 0 && !consoles_.lost().empty() ? kExitEnvironment : code;
}

int run_agent(const LaunchPlan& plan, AgentChannel channel) {
  EventLoop loop;
  Consoles consoles(loop, plan.options.notices_fd);
  consoles.take_log();
  return Agent(plan, std::move(channel), loop, consoles).run();
}

}  // namespace paceline::launcher
