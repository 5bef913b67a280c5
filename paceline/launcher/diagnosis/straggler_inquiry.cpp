#include "paceline/launcher/diagnosis/straggler_inquiry.h"

#include <algorithm>
#include <utility>

namespace paceline::launcher {
namespace {

constexpr int kFewestOperations = 20;
constexpr double kLeastGap = 0.1;         // of the time
constexpr double kMostOfTheOthers = 0.5;  // of the next lowest share

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
  const bool found =
      next.inside - lowest.inside >= kLeastGap && lowest.inside <= kMostOfTheOthers * next.inside;
  times_ = found && lowest.rank == rank_ ? times_ + 1 : 1;
  rank_ = found ? lowest.rank : -1;
  if (!found || times_ != kTimes) return;
  outbox_.send(lowest.agent, StragglerOrder{generation_, lowest.rank, lowest.inside, next.inside});
}

}  // namespace paceline::launcher
