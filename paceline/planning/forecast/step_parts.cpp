#include "paceline/planning/forecast/step_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

namespace {

// The exchange between the hosts of a group, where every host sends and receives at once: (h - 1) /
// h of the buffer in each direction, in as many rounds as a binary tree of the hosts has levels.
LinkTime across_hosts(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.hosts == 1) return {};
  const double hosts = place.hosts;
  const double through_link = bytes * (hosts - 1) / hosts * place.groups_per_host;
  const double rounds = std::ceil(std::log2(hosts));
  // A rank moves its share of the bytes that its host sends and receives.
  const double moved = 2 * bytes * (hosts - 1) / hosts / place.members;
  return {.processor_s = moved / links.sockets.bytes_per_s + 2 * rounds * links.network.message_s,
          .wire_s = through_link / links.network.bytes_per_s + rounds * links.network.latency_s};
}

}  // namespace

LinkTime operator+(const LinkTime& a, const LinkTime& b) {
  return {a.processor_s + b.processor_s, a.wire_s + b.wire_s};
}

// Each rank sums its part of all buffers, and writes the sum into every buffer.
LinkTime all_reduce(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) {
    time.processor_s =
        bytes / links.reduce_bytes_per_s + bytes / links.copy_bytes_per_s + 2 * links.meet_s;
  }
  return time + across_hosts(2 * bytes, place, links);
}

LinkTime reduce_scatter(double bytes, const AxisPlace& place, const CostModel& links) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) time.processor_s = bytes / links.reduce_bytes_per_s + 2 * links.meet_s;
  return time + across_hosts(bytes, place, links);
}

LinkTime all_gather(double bytes, const AxisPlace& place, const CostModel& links,
                    bool once_per_host) {
  if (place.ranks == 1) return {};
  LinkTime time;
  if (place.members > 1) {
    time.processor_s = 2 * links.meet_s;
    if (!once_per_host) {
      time.processor_s += bytes * (place.members - 1) / place.members / links.copy_bytes_per_s;
    }
  }
  return time + across_hosts(bytes, place, links);
}

LinkTime message(double bytes, bool same_host, int sharing, const CostModel& links) {
  if (same_host) return {.processor_s = 2 * bytes / links.copy_bytes_per_s, .wire_s = links.meet_s};
  return {.processor_s = bytes / links.sockets.bytes_per_s + links.network.message_s,
          .wire_s = bytes * sharing / links.network.bytes_per_s + links.network.latency_s};
}

ExposedExchange exposed_exchange(const std::vector<GradientsOfLayer>& layers, double bucket_bytes,
                                 const std::function<double(double bytes)>& seconds_of) {
  ExposedExchange result;
  double now = 0, link_free = 0, collected = 0;
  const auto send = [&] {
    const double seconds = seconds_of(collected);
    link_free = std::max(link_free, now) + seconds;
    result.whole_s += seconds;
    ++result.num_buckets;
    collected = 0;
  };
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    now += layer->backward_s;
    collected += layer->bytes;
    if (collected >= bucket_bytes) send();
  }
  if (collected > 0) send();
  result.seconds = std::max(0.0, link_free - now);
  return result;
}

namespace {

using pipeline::Action;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Simulates, in virtual time, ranks that begin actions, share their host's cores, and end actions.
class SharedRun {
 public:
  SharedRun(const PipelineSchedule& plan, const pipeline::Costs& costs,
            const std::vector<int>& host_of_rank, double cores)
      : plan_(plan),
        costs_(costs),
        clock_(plan.rank_of_stage, plan.num_micro_batches, costs),
        host_of_rank_(host_of_rank),
        cores_(cores),
        ranks_(plan.ranks.size()),
        active_(
            static_cast<std::size_t>(*std::max_element(host_of_rank.begin(), host_of_rank.end())) +
            1) {
    const std::size_t places =
        plan.rank_of_stage.size() * static_cast<std::size_t>(plan.num_micro_batches);
    forward_end_.resize(places, kNever);
    input_end_.resize(places, kNever);
  }

  double run() {
    double now = 0;
    while (true) {
      begin_what_is_ready(now);
      const double next = next_event(now);
      if (next == kNever) return now;
      advance(now, next);
      now = next;
    }
  }

 private:
  struct Rank {
    std::size_t position = 0;
    double left_s = 0;  // the rest of the current action, at full speed
    bool computes = false;
  };

  std::size_t place(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(plan_.num_micro_batches) +
           static_cast<std::size_t>(micro_batch);
  }

  double arrival(double end, int from, int to) const {
    const auto rank_of = [&](int stage) {
      return plan_.rank_of_stage[static_cast<std::size_t>(stage)];
    };
    if (rank_of(from) == rank_of(to)) return end;
    return end + costs_.stages[static_cast<std::size_t>(std::min(from, to))].transfer_s;
  }

  double ready_at(const Action& action) const {
    const auto& [kind, stage, micro_batch] = action;
    const std::size_t here = place(stage, micro_batch);
    if (kind == Action::Kind::kForward)
      return stage == 0 ? 0
                        : arrival(forward_end_[place(stage - 1, micro_batch)], stage - 1, stage);
    if (kind == Action::Kind::kWeightGradient) return input_end_[here];
    if (stage + 1 == plan_.num_stages()) return forward_end_[here];
    return std::max(forward_end_[here],
                    arrival(input_end_[place(stage + 1, micro_batch)], stage + 1, stage));
  }

  const Action* next_of(std::size_t rank) const {
    const auto& actions = plan_.ranks[rank];
    const std::size_t position = ranks_[rank].position;
    return position < actions.size() ? &actions[position] : nullptr;
  }

  int& active_on_host_of(std::size_t rank) {
    return active_[static_cast<std::size_t>(host_of_rank_[rank])];
  }

  void begin_what_is_ready(double now) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Action* const action = next_of(rank);
      if (ranks_[rank].computes || action == nullptr || ready_at(*action) > now) continue;
      ranks_[rank].computes = true;
      ranks_[rank].left_s = clock_.duration(*action);
      ++active_on_host_of(rank);
    }
  }

  double speed_of(std::size_t rank) {
    return std::min(1.0, cores_ / static_cast<double>(active_on_host_of(rank)));
  }

  double next_event(double now) {
    double next = kNever;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].computes) {
        next = std::min(next, now + ranks_[rank].left_s / speed_of(rank));
      } else if (const Action* const action = next_of(rank)) {
        next = std::min(next, ready_at(*action));
      }
    }
    return next;
  }

  void advance(double now, double next) {
    constexpr double kRounding = 1e-12;
    std::vector<std::size_t> ended;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].computes) continue;
      ranks_[rank].left_s -= (next - now) * speed_of(rank);
      if (ranks_[rank].left_s <= kRounding * (1 + next)) ended.push_back(rank);
    }
    for (const std::size_t rank : ended) {
      const Action& action = *next_of(rank);
      if (action.kind == Action::Kind::kForward)
        forward_end_[place(action.stage, action.micro_batch)] = next;
      if (action.makes_input_gradient()) input_end_[place(action.stage, action.micro_batch)] = next;
      ranks_[rank].computes = false;
      ++ranks_[rank].position;
      --active_on_host_of(rank);
    }
  }

  const PipelineSchedule& plan_;
  const pipeline::Costs& costs_;
  const pipeline::ScheduleClock clock_;  // only for the durations of actions
  const std::vector<int>& host_of_rank_;
  const double cores_;
  std::vector<Rank> ranks_;
  std::vector<int> active_;                      // [host] ranks that compute
  std::vector<double> forward_end_, input_end_;  // indexed by place()
};

}  // namespace

double seconds_on_shared_cores(const PipelineSchedule& plan, const pipeline::Costs& costs,
                               const std::vector<int>& host_of_rank, double cores) {
  return SharedRun(plan, costs, host_of_rank, cores).run();
}

namespace {

// The quantile of the normal distribution: solves P(X <= x) = share for x by bisection.
double normal_quantile(double share) {
  double below = -10, above = 10;
  for (int i = 0; i < 80; ++i) {
    const double middle = (below + above) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? below : above) = middle;
  }
  return (below + above) / 2;
}

}  // namespace

double best_interval(const FailureCosts& costs) {
  const auto& [mtbf, checkpoint, restart] = costs;
  if (checkpoint >= 2 * mtbf) return mtbf;
  const double ratio = checkpoint / (2 * mtbf);
  return std::sqrt(2 * checkpoint * mtbf) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - checkpoint;
}

double goodput(const FailureCosts& costs, double interval_s) {
  const auto& [mtbf, checkpoint, restart] = costs;
  if (mtbf <= 0) return interval_s / (interval_s + checkpoint);
  return interval_s /
         (mtbf * std::exp(restart / mtbf) * std::expm1((interval_s + checkpoint) / mtbf));
}

double deviations_of_slowest(int ranks) {
  if (ranks <= 1) return 0;
  return normal_quantile((ranks - 0.375) / (ranks + 0.25));
}

}  // namespace paceline::planning
