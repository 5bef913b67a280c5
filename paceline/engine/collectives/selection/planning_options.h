#pragma once

// The options that decide how a group carries out its collectives.
//
// Thread safety: values.

#include <cstdint>
#include <memory>
#include <optional>

namespace paceline {

struct CostModel;

// docs/network.md explains how each algorithm works, and what it is for. kDirect
// supports every operation.
enum class Algorithm : std::uint8_t {
  kDirect,
  kOneShot,
  kTree,
  kDoubling,
  kHalving,
  kRing,
  kBruck,
  kChain,
  kHierarchy,
};

// All except `costs` must be the same on all ranks.
struct PlanningOptions {
  // The algorithm for all operations over messages that it supports; if empty, the planner chooses.
  std::optional<Algorithm> algorithm = {};
  // Allows algorithms whose sums differ in their bits from the promised ones, if they are faster.
  bool allows_any_order = false;
  // The costs by which the planner chooses; rank 0's apply. If null, a group uses
  // the calibration or, without one, the defaults of CostModel.
  std::shared_ptr<const CostModel> costs = {};
};

}  // namespace paceline
