#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/search.h"

namespace paceline::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns the number of layers in each stage, for the cut with the smallest `total` of the stages'
// values. `sums`: the cost of all layers before each one; `value` gives a stage's value from the
// stage's cost.
std::vector<int> best_cut(const std::vector<double>& sums, int num_stages,
                          const std::function<double(double cost)>& value,
                          const std::function<double(double, double)>& total) {
  const std::size_t layers = sums.size() - 1;
  const auto stages = static_cast<std::size_t>(num_stages);
  // [stages][layers]: the best total for the first `layers` layers in `stages` stages.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(layers + 1, kNever));
  std::vector<std::vector<std::size_t>> begin(stages + 1, std::vector<std::size_t>(layers + 1));
  best[0][0] = 0;
  for (std::size_t stage = 1; stage <= stages; ++stage) {
    for (std::size_t end = stage; end <= layers; ++end) {
      for (std::size_t from = stage - 1; from < end; ++from) {
        const double all = total(best[stage - 1][from], value(sums[end] - sums[from]));
        if (all >= best[stage][end]) continue;
        best[stage][end] = all;
        begin[stage][end] = from;
      }
    }
  }
  std::vector<int> counts(stages);
  std::size_t end = layers;
  for (std::size_t stage = stages; stage > 0; --stage) {
    const std::size_t from = begin[stage][end];
    counts[stage - 1] = static_cast<int>(end - from);
    end = from;
  }
  return counts;
}

// The quality of a cut, smaller is better: the load of the busiest rank, then the most expensive
// stage, then the unevenness of the stages. `sums`: the cost of all layers before each one.
std::tuple<double, double, double> judge(const std::vector<double>& sums,
                                         const std::vector<int>& counts,
                                         const std::vector<int>& rank_of_stage) {
  std::vector<double> of_rank(rank_of_stage.size());
  double most = 0, squares = 0;
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    const auto end = layer + static_cast<std::size_t>(counts[stage]);
    const double cost = sums[end] - sums[layer];
    of_rank.at(static_cast<std::size_t>(rank_of_stage[stage])) += cost;
    most = std::max(most, cost);
    squares += cost * cost;
    layer = end;
  }
  return {*std::max_element(of_rank.begin(), of_rank.end()), most, squares};
}

// Moves a layer over one boundary between stages, or one layer over each of two boundaries, as long
// as the cut improves.
class BoundaryMoves {
 public:
  BoundaryMoves(std::vector<double> sums, const std::vector<int>& rank_of_stage,
                std::vector<int> counts)
      : sums_(std::move(sums)), rank_of_stage_(rank_of_stage), counts_(std::move(counts)) {}

  std::vector<int> run() {
    constexpr int kMaxSteps = 1000;
    for (int i = 0; i < kMaxSteps && step(); ++i) {
    }
    return counts_;
  }

 private:
  using Judgement = std::tuple<double, double, double>;

  // Whether `a` is better than `b` by more than a rounding error.
  static bool is_better(const Judgement& a, const Judgement& b) {
    constexpr double kRounding = 1e-9;
    const auto differs = [](double x, double y) { return std::abs(x - y) > kRounding * (x + y); };
    if (differs(std::get<0>(a), std::get<0>(b))) return std::get<0>(a) < std::get<0>(b);
    if (differs(std::get<1>(a), std::get<1>(b))) return std::get<1>(a) < std::get<1>(b);
    return differs(std::get<2>(a), std::get<2>(b)) && std::get<2>(a) < std::get<2>(b);
  }

  // Moves layers over the boundary after stage `at`, into that stage; a negative number moves them
  // into the next stage.
  static void move(std::vector<int>& counts, std::size_t at, int layers) {
    counts[at] += layers;
    counts[at + 1] -= layers;
  }

  bool step() {
    std::vector<int> best = counts_;
    Judgement least = judge(sums_, counts_, rank_of_stage_);
    const auto consider = [&](const std::vector<int>& counts) {
      if (*std::min_element(counts.begin(), counts.end()) < 1) return;
      const Judgement judgement = judge(sums_, counts, rank_of_stage_);
      if (is_better(judgement, least)) best = counts, least = judgement;
    };
    for (std::size_t first = 0; first + 1 < counts_.size(); ++first) {
      for (const int here : {-1, 1}) {
        std::vector<int> counts = counts_;
        move(counts, first, here);
        consider(counts);
        for (std::size_t second = first + 1; second + 1 < counts_.size(); ++second) {
          for (const int there : {-1, 1}) {
            move(counts, second, there);
            consider(counts);
            move(counts, second, -there);
          }
        }
      }
    }
    const bool found = best != counts_;
    counts_ = best;
    return found;
  }

  const std::vector<double> sums_;
  const std::vector<int>& rank_of_stage_;
  std::vector<int> counts_;
};

std::vector<double> sums_of(const std::vector<double>& costs) {
  std::vector<double> sums{0};  // the cost of all layers before each one
  for (std::size_t i = 0; i < costs.size(); ++i) {
    check(std::isfinite(costs[i]) && costs[i] >= 0, "split_by_cost: the cost of layer {} is {}", i,
          costs[i]);
    sums.push_back(sums.back() + costs[i]);
  }
  return sums;
}

}  // namespace

std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages) {
  check(num_stages >= 1, "split_by_cost: {} stages", num_stages);
  check(costs.size() >= static_cast<std::size_t>(num_stages),
        "split_by_cost: {} layers are too few for {} stages", costs.size(), num_stages);
  const std::vector<double> sums = sums_of(costs);
  const auto least = best_cut(
      sums, num_stages, [](double cost) { return cost; },
      [](double a, double b) { return std::max(a, b); });
  double most = 0;
  std::size_t layer = 0;
  for (const int count : least) {
    const auto end = layer + static_cast<std::size_t>(count);
    most = std::max(most, sums[end] - sums[layer]);
    layer = end;
  }
  return best_cut(
      sums, num_stages, [most](double cost) { return cost > most ? kNever : cost * cost; },
      [](double a, double b) { return a + b; });
}

std::vector<int> split_by_cost(const std::vector<double>& costs,
                               const std::vector<int>& rank_of_stage) {
  for (const int rank : rank_of_stage) {
    check(rank >= 0 && rank < static_cast<int>(rank_of_stage.size()),
          "split_by_cost: a stage is on rank {}, but a rank must be at least 0 and less than the "
          "number "
          "of stages, {}",
          rank, rank_of_stage.size());
  }
  const auto cut = split_by_cost(costs, static_cast<int>(rank_of_stage.size()));
  return BoundaryMoves(sums_of(costs), rank_of_stage, cut).run();
}

}  // namespace paceline::pipeline
