// Decides which of two coordinators gives way when a gap in the network has left a job with both.

#include <algorithm>
#include <tuple>

#include "paceline/engine/core/log.h"
#include "paceline/launcher/coordination/coordinator.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

// The time within which agents that were told to come arrive.
constexpr auto kComing = 5s;

auto order_of(const Endpoint& leader) { return std::tie(leader.host, leader.port); }

}  // namespace

std::optional<std::string> Coordinator::follower(Agent agent) const {
  const auto found = members_.find(agent);
  if (found == members_.end() || phase_ == Phase::kOver) return {};
  const Member& member = found->second;
  if (member.node_rank < 0 && member.joining.next_generation == 0) return {};
  return member.joining.host;
}

bool Coordinator::has_lost_its_job_with(Agent agent) {
  deserters_.insert(agent);
  return static_cast<int>(deserters_.size()) >= settings_.min_nodes;
}

std::vector<Endpoint> Coordinator::others_to_ask() const {
  if (phase_ != Phase::kGathering || has_enough()) return {};
  std::vector<Endpoint> others = stand_ins_;
  std::erase(others, settings_.leader);
  for (const auto& [agent, member] : members_) std::erase(others, member.joining.stand_in);
  return others;
}

Looking Coordinator::question_to(const Endpoint& other) const {
  return {.version = settings_.version,
          .run_id = settings_.run_id,
          .num_nodes = num_members(),
          .leader = settings_.leader,
          .asked = other};
}

// Answers only if the other one is to come. Otherwise that one asks again.
void Coordinator::answer(Agent from, const Looking& looking, Moment now) {
  if (phase_ == Phase::kOver || looking.version != settings_.version ||
      looking.run_id != settings_.run_id) {
    return;
  }
  const bool more = num_members() > looking.num_nodes;
  const bool as_many = num_members() == looking.num_nodes;
  const bool first = order_of(settings_.leader) < order_of(looking.leader);
  if (!has_enough() && !more && !(as_many && first)) return;
  called_until_ = now + kComing;
  send(from, FollowOrder{looking.asked});
}

void Coordinator::follow(const Endpoint& leader, Moment now) {
  if (phase_ != Phase::kGathering || has_enough() || now < called_until_) return;
  log::info(fmt::format("{} of the job's nodes are here ({}); the job goes on at {}", num_members(),
                        hosts_here(), to_string(leader)));
  phase_ = Phase::kOver;
  for (const auto& [agent, member] : members_) send(agent, FollowOrder{leader});
  for (const auto& [agent, spare] : spares_) send(agent, FollowOrder{leader});
  spares_.clear();
}

}  // namespace paceline::launcher
