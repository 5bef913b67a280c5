#include "paceline/launcher/diagnosis/straggler_watch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/resource_limits.h"
#include "paceline/launcher/diagnosis/thread_census.h"

namespace paceline::launcher {

namespace {

using Seconds = std::chrono::duration<double>;

constexpr double kNoticeable = 0.1;  // the share of the span above which a cause is named
constexpr double kMicroseconds = 1e-6, kNanoseconds = 1e-9;

std::optional<double> counter_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  for (double number = 0; file >> word >> number;) {
    if (word == key) return number;
  }
  return {};
}

// The straggler of the largest group in the records, which is usually the world.
std::optional<flight::Straggler> find_in(const std::vector<Flight>& flights) {
  const auto groups = flight::find_positions(flights);
  const auto largest = std::max_element(
      groups.begin(), groups.end(),
      [](const auto& a, const auto& b) { return a.ranks.size() < b.ranks.size(); });
  return largest == groups.end() ? std::nullopt : flight::find_straggler(*largest);
}

}  // namespace

void keep_since(Flight& flight, double seconds) {
  const auto span = static_cast<std::uint64_t>(seconds / kNanoseconds);
  const std::uint64_t begin = flight.now > span ? flight.now - span : 0;
  std::erase_if(flight.operations, [&](const FlightOperation& operation) {
    return operation.entered < begin || operation.state != FlightState::kDone;
  });
}

double share_inside(const Flight& flight) {
  std::uint64_t inside = 0;
  for (const FlightOperation& operation : flight.operations) {
    inside += operation.ended - operation.started;
  }
  const auto span = flight.operations.empty()
                        ? 0
                        : flight.operations.back().ended - flight.operations.front().entered;
  return span == 0 ? 0 : static_cast<double>(inside) / static_cast<double>(span);
}

std::string straggler_cause(const RankActivity& activity) {
  const double span = std::max(activity.span, 1e-9);
  const auto percent = [&](double seconds) { return 100 * std::min(1.0, seconds / span); };
  if (activity.throttled > kNoticeable * span) {
    return fmt::format("throttled: the cgroup's cpu quota was used up {:.0f}% of the time",
                       percent(activity.throttled));
  }
  if (activity.ready > kNoticeable * span) {
    return fmt::format(
        "other load on its cpus: it was ready to run and got no cpu {:.0f}% of the time",
        percent(activity.ready));
  }
  const double idle = span - activity.on_cpu - activity.in_operations;
  if (idle > kNoticeable * span) {
    return fmt::format(
        "it waits for something else, such as data: {:.0f}% of the time it neither computed nor "
        "waited for other ranks",
        percent(idle));
  }
  return "it computes longer than the others: more work, or a slower core";
}

double throttled_seconds(const std::string& cgroups, const std::string& membership) {
  for (const CgroupMembership& cgroup : cgroup_memberships(membership)) {
    if (cgroup.is_unified()) {
      const auto time = counter_in(cgroups + cgroup.path + "/cpu.stat", "throttled_usec");
      if (time) return *time * kMicroseconds;
    } else if (cgroup.has("cpu")) {
      const auto time = counter_in(cgroups + "/cpu" + cgroup.path + "/cpu.stat", "throttled_time");
      if (time) return *time * kNanoseconds;
    }
  }
  return 0;
}

ActivityCounters activity_of(pid_t pid) {
  ActivityCounters counters;
  for (const pid_t member : family_of(pid)) {
    std::error_code error;
    const std::string folder = fmt::format("/proc/{}/task", member);
    for (const auto& thread : std::filesystem::directory_iterator(folder, error)) {
      std::ifstream file(thread.path() / "schedstat");
      double on_cpu = 0, ready = 0;
      if (!(file >> on_cpu >> ready)) continue;
      counters.on_cpu += on_cpu * kNanoseconds;
      counters.ready += ready * kNanoseconds;
    }
  }
  counters.throttled =
      throttled_seconds("/sys/fs/cgroup", cgroup_text(fmt::format("/proc/{}", pid)));
  return counters;
}

StragglerWatch::StragglerWatch(std::chrono::nanoseconds patience, std::string directory)
    : patience_(patience), directory_(std::move(directory)) {}

void StragglerWatch::forget() {
  rank_ = -1;
  times_ = 0;
  told_ = false;
}

std::optional<std::string> StragglerWatch::look(const std::map<int, pid_t>& ranks,
                                                Clock::time_point now) {
  std::vector<Flight> flights;
  try {
    flights = read_flights(directory_).flights;
  } catch (const Error&) {
    return {};  // there are no records (yet)
  }
  for (Flight& flight : flights) keep_since(flight, Seconds(patience_).count());
  const auto found = find_in(flights);
  const auto process = found ? ranks.find(found->rank) : ranks.end();
  if (process == ranks.end()) {
    forget();
    return {};
  }
  if (found->rank != rank_) {
    forget();
    rank_ = found->rank;
    since_ = now;
    before_ = activity_of(process->second);
  }
  if (++times_ <= kLooks || told_) return {};
  told_ = true;
  const ActivityCounters after = activity_of(process->second);
  RankActivity activity{.span = Seconds(now - since_).count(),
                        .on_cpu = after.on_cpu - before_.on_cpu,
                        .ready = after.ready - before_.ready,
                        .throttled = after.throttled - before_.throttled};
  for (const Flight& flight : flights) {
    if (flight.rank == rank_) activity.in_operations = share_inside(flight) * activity.span;
  }
  return fmt::format(
      "rank {} keeps the others waiting: it came last to {} of {} operations, and {:.0f}% of the "
      "time is spent waiting for it\n  probable cause: {}",
      rank_, found->times_last, found->num_operations,
      100 * found->waited_seconds / std::max(found->span_seconds, 1e-9), straggler_cause(activity));
}

std::vector<RankShare> StragglerReport::look(std::vector<Flight> flights,
                                             const std::map<int, pid_t>& ranks,
                                             Clock::time_point now) {
  before_last_ = std::exchange(last_, {now, {}});
  for (const auto& [rank, pid] : ranks) last_.counters[rank] = activity_of(pid);
  std::vector<RankShare> shares;
  for (Flight& flight : flights) {
    if (!ranks.contains(flight.rank)) continue;
    keep_since(flight, std::chrono::duration<double>(patience_).count());
    shares.push_back(
        {flight.rank, share_inside(flight), static_cast<int>(flight.operations.size())});
  }
  return shares;
}

std::string StragglerReport::text(const StragglerOrder& order, pid_t pid,
                                  Clock::time_point now) const {
  const auto found = before_last_.counters.find(order.rank);
  if (found == before_last_.counters.end()) return "";  // the rank was started after that look
  const ActivityCounters& before = found->second;
  const ActivityCounters after = activity_of(pid);
  const double span = std::chrono::duration<double>(now - before_last_.when).count();
  const RankActivity activity{.span = span,
                              .on_cpu = after.on_cpu - before.on_cpu,
                              .ready = after.ready - before.ready,
                              .in_operations = order.inside * span,
                              .throttled = after.throttled - before.throttled};
  return fmt::format(
      "rank {} keeps the others waiting: it spends {:.0f}% of the time in operations, every other "
      "rank at least {:.0f}%, most of it waiting for this one\n  probable cause: {}",
      order.rank, 100 * order.inside, 100 * order.others, straggler_cause(activity));
}

namespace {

constexpr int kFewestOperations = 20;
constexpr double kMinShareGap = 0.1;       // from a straggler's share to the next lowest share
constexpr double kMaxRelativeShare = 0.5;  // a straggler's share, relative to the next lowest share

struct Candidate {
  double inside;
  int rank;
  StragglerInquiry::Agent agent;
};

}  // namespace

void StragglerInquiry::begin(int generation, std::set<Agent> agents) {
  generation_ = generation;
  agents_ = std::move(agents);
  reports_.clear();
  outbox_.clear();
  rank_ = -1;
  times_ = 0;
}

void StragglerInquiry::take(Agent from, const Shares& report) {
  if (report.generation != generation_ || !agents_.contains(from)) return;
  reports_[from] = report;
  if (reports_.size() == agents_.size()) judge();
}

void StragglerInquiry::lose(Agent agent) {
  agents_.erase(agent);
  reports_.erase(agent);
}

void StragglerInquiry::judge() {
  std::vector<Candidate> shares;
  for (const auto& [agent, report] : std::exchange(reports_, {})) {
    for (const RankShare& share : report.ranks) {
      if (share.num_operations >= kFewestOperations) {
        shares.push_back({share.inside, share.rank, agent});
      }
    }
  }
  if (shares.size() < 2) return;
  std::partial_sort(shares.begin(), shares.begin() + 2, shares.end(),
                    [](const auto& a, const auto& b) { return a.inside < b.inside; });
  const Candidate& lowest = shares[0];
  const Candidate& next = shares[1];
  const bool found = next.inside - lowest.inside >= kMinShareGap &&
                     lowest.inside <= kMaxRelativeShare * next.inside;
  times_ = found && lowest.rank == rank_ ? times_ + 1 : 1;
  rank_ = found ? lowest.rank : -1;
  if (!found || times_ != kTimes) return;
  outbox_.send(lowest.agent, StragglerOrder{generation_, lowest.rank, lowest.inside, next.inside});
}

}  // namespace paceline::launcher
