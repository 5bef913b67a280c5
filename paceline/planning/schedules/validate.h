#pragma once

// What every plan must keep, checked before any rank runs it:
//
// - each micro-batch passes each stage once: a forward pass, and either a backward pass or both of
//   its halves;
// - each action is on the rank that has its stage;
// - no rank waits forever: neither for an action that comes later in its own list nor, over other
//   ranks, for itself.
//
// Thread safety: a pure function.

#include "paceline/planning/schedules/plan.h"

namespace paceline::pipeline {

// Error(kInvalid) names the rank and the action.
void validate(const Plan& plan);

}  // namespace paceline::pipeline
