#pragma once

// The roles of a job's ranks: "trainer=2,observer=4" makes ranks 0 and 1 trainers and ranks 2 to 5
// observers. A rank with a role is a worker with a name, such as "observer3", which other ranks use
// to call it (engine/rpc/workers.h) and which the launcher uses in reports. Values.

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

}  // namespace paceline::launcher
