#pragma once

// A coordinator with the agents of a job, for tests. Agents are numbers, and time is an argument.

#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "paceline/launcher/coordination/coordinator.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

using namespace std::chrono_literals;

inline CoordinatorSettings nodes(int min, int max, int max_restarts = 0) {
  return {.terms = {.version = "1",
                    .run_id = "job",
                    .num_nodes = max,
                    .min_nodes = min,
                    .restarts = {.max_restarts = max_restarts}},
          .join_timeout = 60s,
          .last_call_timeout = 3s,
          .expected_nodes = max};
}

// The place in a start order, without the number of restarts that have been used.
inline NodePlace place_of(const StartOrder& order) {
  NodePlace place = order.place;
  place.restarts = {};
  return place;
}

class CoordinatedJob {
 public:
  explicit CoordinatedJob(const CoordinatorSettings& settings)
      : settings_(settings), coordinator_(settings, now_) {}

  Joining joining(int agent) const {
    return {.terms = settings_.terms,
            .host = fmt::format("h{}", agent),
            .num_ranks = 2,
            .stand_in = {fmt::format("10.0.0.{}", agent), 1},
            .offer = {{fmt::format("10.0.0.{}", agent), 2}, {fmt::format("10.0.0.{}", agent), 3}}};
  }
  void join(int agent) { join(agent, joining(agent)); }
  void join(int agent, const Joining& joining) { report(agent, joining); }
  void report(int agent, const Report& report) {
    coordinator_.receive(agent, report, now_);
    collect();
  }
  void fail(int agent, int generation, int exit_code, int signal = 0) {
    const RankEnd end{.exit_code = exit_code, .signal = signal};
    report(agent, RankFailure{generation,
                              {.cause = fmt::format("failure at h{}", agent),
                               .end = describe(end),
                               .exit_code = end.status(),
                               .signal = signal}});
  }
  void stopped(int agent, int generation, std::chrono::milliseconds lived = 100ms,
               std::optional<std::uint64_t> steps = {}) {
    report(agent, Stopped{generation, lived, steps, joining(agent).offer});
  }
  void lose(int agent) {
    coordinator_.lose(agent, "the connection was closed", now_);
    collect();
  }
  void pass(std::chrono::nanoseconds time) {
    now_ += time;
    if (coordinator_.next_deadline() <= now_) coordinator_.tick(now_);
    collect();
  }

  // Takes the agent's last order. Returns nothing if there is none, or if it is of another kind
  // than T.
  template <class T>
  std::optional<T> take(int agent) {
    const auto found = last_.find(agent);
    if (found == last_.end()) return {};
    const Order order = found->second;
    last_.erase(found);
    const T* one = std::get_if<T>(&order);
    return one != nullptr ? std::optional(*one) : std::nullopt;
  }
  bool over() const { return coordinator_.over(); }
  const Coordinator& coordinator() const { return coordinator_; }
  void follow(const Endpoint& leader) {
    coordinator_.follow(leader, now_);
    collect();
  }
  bool add_deserter(int agent) { return coordinator_.add_deserter(agent); }
  // The agents whose failure the coordinator named as the first, in the order of these messages.
  const std::vector<int>& failed_first() const { return failed_first_; }
  void expect_reports_within(std::chrono::nanoseconds time) {
    coordinator_.expect_reports_within(time);
  }

 private:
  void collect() {
    for (auto& [to, order] : coordinator_.take_mail()) {
      if (std::holds_alternative<FirstFailureOrder>(order)) {
        failed_first_.push_back(to);
      } else {
        last_.insert_or_assign(to, order);
      }
    }
  }

  const CoordinatorSettings settings_;
  Coordinator::Moment now_{};
  Coordinator coordinator_;
  std::map<int, Order> last_;
  std::vector<int> failed_first_;
};

}  // namespace paceline::launcher
