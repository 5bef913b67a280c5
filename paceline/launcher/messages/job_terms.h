#pragma once

// The roles of a job's ranks, the options on which the nodes of a job agree, the job's budget of
// restarts, and the place of one node in the job. Values, which travel between the job's agents
// (agent_messages.h).
//
// Roles: "trainer=2,observer=4" makes ranks 0 and 1 trainers and ranks 2 to 5 observers. A rank
// with a role is a worker with a name, such as "observer3", which other ranks use to call it
// (engine/rpc/workers.h) and which the launcher uses in reports.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace paceline::launcher {

// The role name that torchrun gives to ranks without a role.
inline constexpr const char* kNoRole = "default";

struct RoleCount {
  std::string name;
  int count = 0;
  bool serves = false;  // the job does not wait for the ranks of this role
  bool operator==(const RoleCount&) const = default;
};

// The roles in the order of ranks. A name may occur several times if nodes bring their own roles.
using Roles = std::vector<RoleCount>;

// The role of one rank.
struct RankRole {
  std::string name = kNoRole;
  int number = 0, count = 1;  // within the role
  bool serves = false;

  std::string worker() const { return name + std::to_string(number); }
  bool operator==(const RankRole&) const = default;
};

int num_ranks(const Roles& roles);
// Requires: rank < num_ranks(roles).
RankRole role_of(const Roles& roles, int rank);
// The roles as text: "trainer=2,observer=4".
std::string to_text(const Roles& roles);

// Reads what to_text() writes. Error(kInvalid) names `source`, the wrong part and what is allowed.
Roles parse_roles(const std::string& text, const std::string& source);
// The names in a list like "trainer,evaluator". Error(kInvalid) for a name that is given twice.
std::vector<std::string> parse_role_names(const std::string& text, const std::string& source);
// Marks all roles as serving, except those in the list `names`. Errors: those of
// parse_role_names(); kInvalid for an unknown role.
void set_awaited(Roles& roles, const std::string& names, const std::string& source);
bool some_serve(const Roles& roles);
bool all_serve(const Roles& roles);

// How often a job may start its ranks again after failures, and how often it has done so. The same
// value is an option of each launcher, the state of the coordinator's RestartPolicy, and a part of
// each order that starts a generation. So an agent that takes over from the coordinator continues
// to count from the last number.
struct RestartBudget {
  int max_restarts = 0;
  std::chrono::nanoseconds window = std::chrono::hours(1);  // 0: restarts of the whole job count
  bool after_damage = true;  // whether ranks whose state was damaged are started again

  int num_restarts = 0;  // so far, including restarts before the window
  // The time since each restart within the window, oldest first. Empty without a window.
  std::vector<std::chrono::nanoseconds> ages{};
  // About the newest generations that ended without progress: how the last of them ended, how many
  // in a row ended in the same way, and how many in a row ended soon after their start.
  std::string last_end{};
  int num_alike = 0, num_young = 0;

  bool has_window() const { return window > std::chrono::nanoseconds(0); }
  int num_used() const { return has_window() ? static_cast<int>(ages.size()) : num_restarts; }
  bool is_used_up() const { return num_used() >= max_restarts; }
  // The same budget, seen `time` later.
  RestartBudget after(std::chrono::nanoseconds time) const {
    RestartBudget later = *this;
    for (std::chrono::nanoseconds& age : later.ages) age += time;
    std::erase_if(later.ages, [this](std::chrono::nanoseconds age) { return age >= window; });
    return later;
  }
  bool operator==(const RestartBudget&) const = default;
};

// Options that must be the same on all nodes of a job, except `restarts`: only the coordinator's
// value is used.
struct JobTerms {
  std::string version;  // of Paceline
  std::string run_id;
  int num_nodes = 1;                // the largest number of nodes
  int min_nodes = 1;                // the smallest number with which the job runs
  std::int64_t logical_shards = 0;  // the ranks' PACELINE_LOGICAL_SHARDS; 0: none
  Roles roles;                      // of all ranks; empty: each node brings its own
  RestartBudget restarts;

  // Whether there may be more than one generation.
  bool may_restart() const { return restarts.max_restarts > 0 || min_nodes < num_nodes; }
  // Whether the job may continue after a loss that leaves it `nodes` nodes: these are enough,
  // or a restart may wait for other nodes.
  bool may_go_on_with(int nodes) const { return nodes >= min_nodes || !restarts.is_used_up(); }
  bool operator==(const JobTerms&) const = default;
};

// The place of one node's ranks in the world, in one generation of the job.
struct NodePlace {
  int generation = 0;  // number of earlier starts: TORCHELASTIC_RESTART_COUNT
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;  // of this node; its other ranks follow
  int world_size = 1;
  Roles roles{};             // of all ranks; empty: the ranks have no roles
  RestartBudget restarts{};  // the budget when the generation starts

  int rank_of(int local_rank) const { return first_rank + local_rank; }
  bool has_roles() const { return !roles.empty() && roles.front().name != kNoRole; }
  RankRole role_of(int rank) const {
    if (!roles.empty()) return launcher::role_of(roles, rank);
    return {.number = rank, .count = world_size};
  }
  // "trainer1", or "3".
  std::string short_name_of(int rank) const {
    return has_roles() ? role_of(rank).worker() : std::to_string(rank);
  }
  // "trainer1 (rank 3)", or "rank 3".
  std::string name_of(int rank) const {
    const std::string plain = "rank " + std::to_string(rank);
    return has_roles() ? role_of(rank).worker() + " (" + plain + ")" : plain;
  }
  bool operator==(const NodePlace&) const = default;
};

}  // namespace paceline::launcher
