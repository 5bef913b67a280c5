#pragma once

// The roles of a job's ranks: "trainer=2,observer=4" makes ranks 0 and 1 trainers and ranks 2 to 5
// observers. A rank of a role is a worker with a name, "observer3", by which others call it
// (engine/rpc/workers.h) and by which the launcher reports it. Values.

#include <string>
#include <vector>

namespace paceline::launcher {

// torchrun's name for ranks that have no role.
inline constexpr const char* kNoRole = "default";

struct RoleCount {
  std::string name;
  int count = 0;
  bool serves = false;  // the job ends without waiting for its ranks
  bool operator==(const RoleCount&) const = default;
};

// In the order of ranks. A name occurs again where nodes bring their own roles.
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
// "trainer=2,observer=4".
std::string to_text(const Roles& roles);

// Reads what to_text() writes. Error(kInvalid), which names `source`, the wrong part and what is
// allowed.
Roles parse_roles(const std::string& text, const std::string& source);
// The names in a list like "trainer,evaluator". Error(kInvalid) for one that is given twice.
std::vector<std::string> parse_role_names(const std::string& text, const std::string& source);
// Marks all roles but those in the list as serving. Error(kInvalid) also for an unknown one.
void set_awaited(Roles& roles, const std::string& names, const std::string& source);
bool some_serve(const Roles& roles);
bool all_serve(const Roles& roles);

// Where the ranks of this node stand in the world of one generation of the job. A value.

struct NodePlace {
  int generation = 0;  // how often the ranks were started before: TORCHELASTIC_RESTART_COUNT
  int max_restarts = 0;
  int node_rank = 0;
  int num_nodes = 1;
  int first_rank = 0;  // of this node; the others follow
  int world_size = 1;
  Roles roles{};  // of all ranks; empty: they have none

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
