// The rules by which the coordinator admits nodes: a node of this job joins if the job has a place
// for it, and otherwise waits as a spare if it may replace a lost node. Also the rule by which one
// of two coordinators gives way.

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/launcher/coordination/coordinator.h"

namespace paceline::launcher {

namespace {

constexpr int kMaxRanks = 4096;  // the most ranks of one node; --nproc-per-node has the same limit

// Returns --roles and --until as text, for example "trainer=2,observer=4 until trainer".
std::string text_of(const Roles& roles) {
  if (roles.empty()) return "not given";
  std::string text = to_text(roles);
  if (!some_serve(roles)) return text;
  const char* between = " until ";
  for (const RoleCount& role : roles) {
    if (!role.serves) text += std::exchange(between, ",") + role.name;
  }
  return text;
}

}  // namespace

std::optional<std::string> Coordinator::refusal_of(const Joining& joining) const {
  if (phase_ == Phase::kOver) return "the job is over";
  if (joining.terms.version != terms().version) {
    return fmt::format(
        "this node has Paceline {}, the job's other nodes have {}: install the same "
        "version",
        joining.terms.version, terms().version);
  }
  if (joining.terms.run_id != terms().run_id) {
    return fmt::format(
        "--rdzv-id is '{}' here and '{}' on the job's other nodes: another job is at this "
        "endpoint, or the ids differ by mistake",
        joining.terms.run_id, terms().run_id);
  }
  if (joining.terms.min_nodes != terms().min_nodes ||
      joining.terms.num_nodes != terms().num_nodes) {
    return fmt::format("--nnodes is {}:{} here and {}:{} on the job's other nodes",
                       joining.terms.min_nodes, joining.terms.num_nodes, terms().min_nodes,
                       terms().num_nodes);
  }
  if (joining.terms.logical_shards != terms().logical_shards) {
    return fmt::format("--logical-shards is {} here and {} on the job's other nodes (0: none)",
                       joining.terms.logical_shards, terms().logical_shards);
  }
  if (joining.terms.roles != terms().roles) {
    return fmt::format("--roles and --until are {} here and {} on the job's other nodes",
                       text_of(joining.terms.roles), text_of(terms().roles));
  }
  if (joining.num_ranks < 1 || joining.num_ranks > kMaxRanks) {
    return fmt::format("{} ranks on one node; 1 to {} are allowed", joining.num_ranks, kMaxRanks);
  }
  return {};
}

std::optional<std::string> Coordinator::obstacle_to(const Joining& joining) const {
  for (const auto& [agent, member] : members_) {
    if (!joining.node_rank || member.joining.node_rank != joining.node_rank) continue;
    return fmt::format(
        "--node-rank {} is taken by host {}: give every node a different rank, or no node a rank",
        *joining.node_rank, member.joining.host);
  }
  if (num_members() < terms().num_nodes) {
    if (phase_ != Phase::kRunning || would_enlarge_job(joining)) return {};
    return fmt::format(
        "{} logical shards cannot be divided among the ranks of the job and of this node",
        terms().logical_shards);
  }
  return fmt::format("all {} of the job have joined already (--nnodes)",
                     counted(terms().num_nodes, "node"));
}

void Coordinator::refuse(Agent agent, const std::string& reason) {
  send(agent,
       EndOrder{.exit_code = kExitUsage,
                .reason = fmt::format("the job '{}' refused this node: {}", terms().run_id, reason),
                .alone = true});
}

// Returns whether the job is ending: all ranks of some node have ended without a failure. No new
// generation is then started to admit another node.
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

void Coordinator::keep_as_spare(Agent agent, const Joining& joining, const std::string& obstacle,
                                Moment now) {
  if (!may_need_spares()) {
    return refuse(agent, obstacle + "; without --max-restarts, a lost node is not replaced");
  }
  const bool is_taken = rank_is_taken(joining);
  if (num_members() < terms().num_nodes && !is_taken) {  // the shards cannot be divided
    spares_.emplace(agent, Spare{joining, Moment::max()});
    return send(agent, WaitOrder{obstacle + "; waiting until they can be"});
  }
  const auto patience = is_taken ? settings_.loss_timeout : settings_.join_timeout;
  spares_.emplace(agent, Spare{joining, now + patience});
  send(agent, WaitOrder{fmt::format("{}; waiting for up to {:g} s in case {} is lost", obstacle,
                                    std::chrono::duration<double>(patience).count(),
                                    is_taken ? "that host" : "one of them")});
}

// Admits the spares that the job has a place for, in the order of their arrival. Call this when a
// node may have left the job.
void Coordinator::admit_spares() {
  if (phase_ == Phase::kOver || ending()) return;
  for (auto next = spares_.begin(); next != spares_.end();) {
    const auto spare = next++;
    if (obstacle_to(spare->second.joining)) continue;
    admit(spare->first, spare->second.joining);
    spares_.erase(spare);
  }
}

// Returns the largest n such that the logical shards can be divided among the ranks of the first n
// nodes; 0 if there is none. `ranks_of_nodes`: the number of ranks of each node.
std::size_t Coordinator::num_fitting(const std::vector<int>& ranks_of_nodes) const {
  if (terms().logical_shards == 0) return ranks_of_nodes.size();
  std::size_t fitting = 0;
  std::int64_t num_ranks = 0;
  for (std::size_t i = 0; i < ranks_of_nodes.size(); ++i) {
    num_ranks += ranks_of_nodes[i];
    if (shards_fit(terms().logical_shards, num_ranks)) fitting = i + 1;
  }
  return fitting;
}

// Returns whether a generation with the joining node and the spares would have more nodes than the
// running one.
bool Coordinator::would_enlarge_job(const Joining& joining) const {
  std::vector<int> ranks;
  for (const auto& [agent, member] : members_) ranks.push_back(member.joining.num_ranks);
  for (const auto& [agent, spare] : spares_) ranks.push_back(spare.joining.num_ranks);
  ranks.push_back(joining.num_ranks);
  ranks.resize(std::min(ranks.size(), static_cast<std::size_t>(terms().num_nodes)));
  return num_fitting(ranks) > members_.size();
}

// Keeps as many members as the next generation can have, such that the logical shards can be
// divided among their ranks, and makes the other members spares. Returns false if this leaves fewer
// members than the job needs.
bool Coordinator::keep_fitting_members() {
  if (terms().logical_shards == 0) return true;
  admit_spares();
  const std::vector<Agent> order = seats();
  std::vector<int> ranks;
  for (const Agent agent : order) ranks.push_back(members_.at(agent).joining.num_ranks);
  const std::size_t fitting = num_fitting(ranks);
  if (fitting < static_cast<std::size_t>(terms().min_nodes)) return false;
  if (fitting < order.size() && !note_.empty()) {
    note_ += fmt::format(", {} of them waiting: {} logical shards can be divided among {} ranks",
                         order.size() - fitting, terms().logical_shards,
                         ranks_that_fit(terms().logical_shards));
  }
  for (std::size_t i = fitting; i < order.size(); ++i) {
    const auto member = members_.extract(order[i]);
    spares_.emplace(order[i], Spare{member.mapped().joining, Moment::max()});
    send(order[i],
         WaitOrder{fmt::format("{} logical shards cannot be divided among the ranks of all {} "
                               "nodes; waiting until they can be",
                               terms().logical_shards, order.size())});
  }
  return true;
}

void Coordinator::dismiss_spares(Moment now) {
  std::erase_if(spares_, [&](const auto& entry) {
    const auto& [agent, spare] = entry;
    if (now < spare.until) return false;
    const auto obstacle = obstacle_to(spare.joining);
    const char* const outcome =
        rank_is_taken(spare.joining) ? "" : ", and none of them was lost meanwhile";
    refuse(agent, obstacle ? *obstacle + outcome : "the job is ending");
    return true;
  });
}

namespace {

using namespace std::chrono_literals;

// After another coordinator was told to give way, its agents may take this long to join.
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

bool Coordinator::add_deserter(Agent agent) {
  deserters_.insert(agent);
  return static_cast<int>(deserters_.size()) >= terms().min_nodes;
}

std::vector<Endpoint> Coordinator::others_to_ask() const {
  if (phase_ != Phase::kGathering || has_enough()) return {};
  std::vector<Endpoint> others = stand_ins_;
  std::erase(others, settings_.leader);
  for (const auto& [agent, member] : members_) std::erase(others, member.joining.stand_in);
  return others;
}

Looking Coordinator::question_to(const Endpoint& other) const {
  return {.version = terms().version,
          .run_id = terms().run_id,
          .num_nodes = num_members(),
          .leader = settings_.leader,
          .asked = other};
}

// Answers another coordinator's question only if that coordinator has to give way. A coordinator
// that gets no answer asks again.
void Coordinator::answer(Agent from, const Looking& looking, Moment now) {
  if (phase_ == Phase::kOver || looking.version != terms().version ||
      looking.run_id != terms().run_id) {
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
  log::info(fmt::format("{} of the job's nodes are here ({}); the job continues at {}",
                        num_members(), hosts_here(), to_string(leader)));
  phase_ = Phase::kOver;
  for (const auto& [agent, member] : members_) send(agent, FollowOrder{leader});
  for (const auto& [agent, spare] : spares_) send(agent, FollowOrder{leader});
  spares_.clear();
}

}  // namespace paceline::launcher
