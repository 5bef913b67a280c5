// Whom the coordinator admits: nodes of this job for which there is a place. Those that come before
// there is one wait as spares.

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "paceline/coordination/coordinator.h"
#include "paceline/core/counted.h"
#include "paceline/core/exit_code.h"

namespace paceline::launch {
namespace {

constexpr int kMostRanks = 4096;  // of one node, as --nproc-per-node

}  // namespace

std::string Coordinator::refusal_of(const Joining& joining) const {
  if (phase_ == Phase::kOver) return "the job is over";
  if (joining.version != settings_.version) {
    return fmt::format("this node has Paceline {}, the job's others {}: install the same version",
                       joining.version, settings_.version);
  }
  if (joining.run_id != settings_.run_id) {
    return fmt::format(
        "--rdzv-id is '{}' here and '{}' at the job's others: another job is at this "
        "endpoint, or the ids differ by mistake",
        joining.run_id, settings_.run_id);
  }
  if (joining.min_nodes != settings_.min_nodes || joining.max_nodes != settings_.max_nodes) {
    return fmt::format("--nnodes is {}:{} here and {}:{} at the job's others", joining.min_nodes,
                       joining.max_nodes, settings_.min_nodes, settings_.max_nodes);
  }
  if (joining.num_ranks < 1 || joining.num_ranks > kMostRanks) {
    return fmt::format("{} ranks on one node", joining.num_ranks);
  }
  return "";
}

// What keeps out a node of this job, for now at least.
std::string Coordinator::obstacle_to(const Joining& joining) const {
  for (const auto& [agent, member] : members_) {
    if (!joining.node_rank || member.joining.node_rank != joining.node_rank) continue;
    return fmt::format("--node-rank {} is taken by host {}: give every node its own, or none",
                       *joining.node_rank, member.joining.host);
  }
  if (num_members() < settings_.max_nodes) return "";
  return fmt::format("all {} of the job are there already (--nnodes)",
                     counted(settings_.max_nodes, "node"));
}

void Coordinator::refuse(Agent agent, const std::string& reason) {
  send(agent, EndOrder{.exit_code = kExitUsage,
                       .reason = fmt::format("the job '{}' refused this node: {}", settings_.run_id,
                                             reason),
                       .alone = true});
}

// A job that is ending is not begun anew for anybody.
bool Coordinator::ending() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.stage == Stage::kFinished; });
}

void Coordinator::admit(Agent agent, const Joining& joining) {
  members_.emplace(agent, Member{.joining = joining, .arrival = num_arrivals_++});
  generation_ = std::max(generation_, phase_ == Phase::kGathering ? joining.next_generation : 0);
}

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
