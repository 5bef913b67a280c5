// The coordinator's spares: nodes that came before there was a place for them.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "paceline/launch/coordinator.h"

namespace paceline::launch {

bool Coordinator::rank_is_taken(const Joining& joining) const {
  return joining.node_rank && std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
           return entry.second.joining.node_rank == joining.node_rank;
         });
}

// Before the job begins a lost node is replaced, afterwards where it can go on.
bool Coordinator::may_need_spares() const {
  return phase_ == Phase::kGathering || settings_.min_nodes < settings_.max_nodes ||
         settings_.restarts.max_restarts > 0;
}

void Coordinator::keep_as_spare(Agent agent, const Joining& joining, const std::string& obstacle,
                                Moment now) {
  if (!may_need_spares()) {
    return refuse(agent, obstacle + "; of a fixed number without --max-restarts none is replaced");
  }
  const auto patience = rank_is_taken(joining) ? settings_.loss_timeout : settings_.join_timeout;
  spares_.emplace(agent, Spare{joining, now + patience});
  send(agent, WaitOrder{fmt::format("{}; waiting for up to {:g} s in case one of them is lost",
                                    obstacle, std::chrono::duration<double>(patience).count())});
}

// Whoever fits now that a node has gone, in the order in which they came.
void Coordinator::admit_spares() {
  if (phase_ == Phase::kOver || ending()) return;
  for (auto next = spares_.begin(); next != spares_.end();) {
    const auto spare = next++;
    if (!obstacle_to(spare->second.joining).empty()) continue;
    admit(spare->first, spare->second.joining);
    spares_.erase(spare);
  }
}

void Coordinator::dismiss_spares(Moment now) {
  std::erase_if(spares_, [&](const auto& entry) {
    const auto& [agent, spare] = entry;
    if (now < spare.until) return false;
    const std::string obstacle = obstacle_to(spare.joining);
    refuse(agent,
           obstacle.empty() ? "the job is ending" : obstacle + ", and none was lost meanwhile");
    return true;
  });
}

}  // namespace paceline::launch
