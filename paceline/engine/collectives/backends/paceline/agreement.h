#pragma once

// What the ranks of a group settle before they can do anything else: the numbers by which all of
// them choose algorithms, and which ranks share memory. Whatever carries out calls is made from
// the result.

#include <memory>
#include <optional>
#include <span>

#include "paceline/engine/collectives/backends/paceline/symmetric_registry.h"
#include "paceline/engine/collectives/planning/package_plan.h"
#include "paceline/engine/collectives/planning/planner.h"
#include "paceline/engine/transport/exchange.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

struct EngineOptions {
  PlanningOptions planning;
  std::uint32_t generation = 0;  // as in later fingerprints
  std::uint64_t group = 0;
  // Of all groups of this rank; never null.
  std::shared_ptr<SymmetricRegistry> symmetric = std::make_shared<SymmetricRegistry>();
};

// Whose memory this rank maps; kAll is the same on every rank.
enum class Sharing { kNobodys, kOfSome, kOfAll };

struct Agreement {
  Planner planner;
  std::optional<PackagePlan> packages;  // of kOfAll, where by_package is set
};

// Collective; a group of one sends nothing. Error(kInvalid) when the planning options differ from
// those of rank 0, others as MessageExecutor::run() throws them.
Agreement agree(Mesh& mesh, Exchange& exchange, Sharing sharing, const EngineOptions& options,
                Deadline deadline);

// Gives every rank the bytes of all, one rank's after the other.
Collective all_gather_of(std::span<const std::byte> mine, std::span<std::byte> all);

}  // namespace paceline
