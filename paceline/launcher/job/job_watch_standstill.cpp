// The launcher's eyes on ranks that hang or hold the others up, together with those of other hosts.

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/host.h"
#include "paceline/engine/core/io.h"
#include "paceline/launcher/diagnosis/flight_digest.h"
#include "paceline/launcher/diagnosis/hang_inquiry.h"
#include "paceline/launcher/job/job_watch.h"
#include "paceline/engine/core/shell_words.h"

namespace paceline::launcher {
namespace {

// For another host to read its ranks' stacks, end them and say so.
constexpr std::chrono::seconds kTimeToEnd{5};

// Whether the timer has really expired.
bool take(const Fd& timer) {
  std::uint64_t times = 0;
  return read_record(timer.get(), times);
}

}  // namespace

void JobWatch::look_for_hang() {
  if (!take(hang_timer_) || ranks_.empty() || at_rest_) return;
  const bool stands_still = hang_watch_->look(ranks_);
  if (const auto seconds = hang_watch_->take_recovery()) {
    actions_.say(fmt::format("paceline: the job goes on, after {:.1f} s\n", *seconds));
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

// Hosts may share the folder. A program that makes no group leaves no records.
std::vector<Flight> JobWatch::own_flights() const {
  std::vector<Flight> flights;
  try {
    flights = read_flights(folders_.flights).flights;
  } catch (const Error&) {
    return flights;
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
    ended_elsewhere_ = Deadline::after(kTimeToEnd);
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
        fmt::format("paceline: warning: the ranks cannot be looked at: {}\n", error.what()));
    tell(hang);
  }
}

void JobWatch::look_for_straggler() {
  if (!take(straggler_timer_) || ranks_.empty() || at_rest_) return;
  // The time for which ranks waited while the job stood still is not charged to any rank.
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

// A name that means this job on this host.
std::string JobWatch::advice() const {
  const LaunchOptions& options = plan_.options;
  const std::string job = options.run_id_is_shared() ? fmt::to_string(supervisor_) : options.run_id;
  return fmt::format("paceline stacks {}{} shows every thread", shell_quoted(job),
                     options.several_nodes() ? " on host " + host_name() : "");
}

// Only those that keep the others waiting.
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
