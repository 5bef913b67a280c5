#include "paceline/engine/collectives/planning/planner.h"

#include <algorithm>

#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/algorithms/subtrees.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/planning/cost_file.h"
#include "paceline/engine/collectives/planning/plan_text.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/counted.h"

namespace paceline {
namespace {

constexpr std::size_t kLeastChunkBytes = 16 << 10;
constexpr std::size_t kMostChunkBytes = 1 << 20;

std::string text_of(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} µs", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace

Planner::Planner(Hosts hosts, const PlanningOptions& options, bool shares_memory)
    : hosts_(std::move(hosts)),
      options_(options),
      costs_(options.costs.value_or(CostModel())),
      shares_memory_(shares_memory),
      world_(hosts_.world_size()) {
  for (const auto& members : hosts_.members) {
    most_per_host_ = std::max(most_per_host_, static_cast<double>(members.size()));
    is_in_blocks_ &= members.back() - members.front() + 1 == static_cast<int>(members.size());
  }
  for (const auto& trees : subtrees_by_host(hosts_)) {
    partials_ = std::max(partials_, static_cast<double>(trees.size()));
  }
}

double Planner::seconds(const Effort& work) const {
  const LinkCost& link = hosts_.size() > 1 ? costs_.network : costs_.sockets;
  const double wires = work.network_bytes / costs_.network.bytes_per_s +
                       work.socket_bytes / costs_.sockets.bytes_per_s;
  return work.rounds * link.latency_s + 2 * work.messages * link.message_s + wires +
         work.reduce_bytes / costs_.reduce_bytes_per_s + work.copy_bytes / costs_.copy_bytes_per_s +
         work.meetings * costs_.meet_s;
}

CallSizes Planner::sizes_of(const PlanRequest& request) const {
  const auto element = static_cast<double>(size_of(request.dtype));
  CallSizes s{};
  s.p = world_;
  s.hosts = static_cast<double>(hosts_.size());
  s.m = most_per_host_;
  s.levels = levels_of(world_);
  s.owners = floor_power_of_two(world_);
  s.full = levels_of(static_cast<int>(s.owners));
  s.rest = s.p - s.owners;
  s.wide = static_cast<double>(partial_size_of(request.dtype)) / element;
  s.n = static_cast<double>(request.count) * element;
  if (has_counts(request.op)) s.n /= has_count_matrix(request.op) ? s.p * s.p : s.p;
  s.partials = partials_;
  s.is_in_blocks = is_in_blocks_;
  return s;
}

Candidate Planner::weigh(Algorithm algorithm, const PlanRequest& request) const {
  const CallSizes sizes = sizes_of(request);
  Candidate candidate{.algorithm = algorithm};
  if (algorithm != Algorithm::kChain) {
    candidate.work = effort_of(algorithm, request.op, sizes);
    candidate.seconds = seconds(candidate.work);
    return candidate;
  }
  // The best of the powers of two: short enough to fill the pipe, long enough for its price.
  candidate.seconds = -1;
  Candidate best = candidate;
  for (std::size_t bytes = kLeastChunkBytes; bytes <= kMostChunkBytes; bytes *= 2) {
    candidate.chunk = bytes / size_of(request.dtype);
    candidate.work = effort_of(algorithm, request.op, sizes, static_cast<double>(bytes));
    candidate.seconds = seconds(candidate.work);
    if (best.seconds < 0 || candidate.seconds < best.seconds) best = candidate;
  }
  return best;
}

std::vector<Candidate> Planner::candidates(const PlanRequest& request) const {
  std::vector<Candidate> all;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (!serves(algorithm, request.op)) continue;
    if (algorithm == Algorithm::kHierarchy && (!shares_memory_ || hosts_.size() < 2)) {
      continue;
    }
    const bool is_asked_for = options_.allows_any_order || options_.algorithm == algorithm;
    if (!keeps_order(algorithm, request.op) && !is_asked_for) continue;
    all.push_back(weigh(algorithm, request));
  }
  std::stable_sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    const bool is_a = options_.algorithm == a.algorithm;
    const bool is_b = options_.algorithm == b.algorithm;
    return is_a != is_b ? is_a : a.seconds < b.seconds;
  });
  return all;
}

std::string Planner::explain(const PlanRequest& request) const {
  const auto all = candidates(request);
  std::string text =
      fmt::format("{} among {} on {}; costs: {}:\n", describe(request), counted(world_, "rank"),
                  counted(hosts_.size(), "host"), provenance(costs_));
  for (const Candidate& candidate : all) {
    const bool is_chosen = &candidate == &all.front();
    text +=
        fmt::format("{} {:<10}{:>10}  {}{}\n", is_chosen ? '*' : ' ', name_of(candidate.algorithm),
                    text_of(candidate.seconds), describe(candidate.work),
                    is_chosen && options_.algorithm == candidate.algorithm ? "; asked for" : "");
  }
  return text;
}

}  // namespace paceline
