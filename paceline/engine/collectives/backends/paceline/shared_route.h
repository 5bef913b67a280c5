#pragma once

// Which way ranks that share memory carry out a call. The executor obeys it, explain() prints it.
// Pure functions of what all ranks agree on, so that all choose alike.

#include <cstddef>
#include <string>

#include "paceline/engine/collectives/planning/package_plan.h"
#include "paceline/engine/collectives/planning/planner.h"

namespace paceline {

struct SharedTerms {
  int world_size = 1;
  bool shares_cores = false;              // more ranks than cores: they wait longer for each other
  const PackagePlan* packages = nullptr;  // null: not asked for
};

struct SharedRoute {
  // In the order of size: staged without a look at where buffers lie; staged or in place, copied
  // before the ranks meet; in place, or staged piece by piece.
  enum class Way { kTiny, kSmall, kLarge };
  Way way = Way::kTiny;
  bool is_one_shot = false;  // when staged: every rank reduces everything itself
  bool is_by_package = false;
};

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request);
// Lines for people.
std::string explain_route(const SharedTerms& terms, const PlanRequest& request);

// The most elements of a call, or of each of its blocks, that a piece of a staging area has room
// for.
std::size_t staged_piece_count(Op op, Dtype dtype, int world_size);

}  // namespace paceline
