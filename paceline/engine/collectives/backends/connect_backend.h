#pragma once

// Connects the ranks of a group: Paceline's engine first, over which they then compare their choice
// of backend, then the chosen libraries.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/planning/planning_options.h"
#include "paceline/engine/core/rank_name.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/transport/connect.h"

namespace paceline {

class FailureDomain;
class SymmetricRegistry;

struct BackendOptions {
  std::string group;             // its name
  int rank = 0;                  // in the group
  std::vector<int> world_ranks;  // of its members in the job
  std::string choice;            // as parse_backend_choice() takes it
  LinkOptions link;
  PlanningOptions planning;
  std::chrono::milliseconds timeout{300'000};
  std::function<std::vector<int>()> look_after_parent = {};  // as ConnectOptions has it
  std::shared_ptr<SymmetricRegistry> symmetric;              // of all groups of this rank
  std::shared_ptr<FailureDomain> failures;                   // likewise

  // As messages call a member, and this rank.
  std::string name_of(std::size_t member) const {
    return rank_name(static_cast<int>(member), world_ranks[member]);
  }
  std::string self() const { return name_of(static_cast<std::size_t>(rank)); }
};

// Collective. When the ranks chose differently, or one of them cannot have what it chose, every
// rank gets Error(kInvalid) or Error(kUnsupported) that says which. Otherwise the errors of
// connect_mesh() and of the libraries.
std::unique_ptr<Backend> connect_backend(const Rendezvous& rendezvous,
                                         const BackendOptions& options);

}  // namespace paceline
