#pragma once

// Which rank computes which branch (parallel_branches.h), by measured cost.
//
// The costs are of computing alone: the time in which results and gradients travel is not in them.
//
// Thread safety: assign_branches() is a pure function; measure_branches() as ProcessGroup.

#include <vector>

#include "paceline/training/autograd/parallel_branches.h"

namespace paceline {

// The owner of each branch: the most expensive branch first, each to the rank with the least work
// so far; of equal ones the first branch, the lowest rank. The busiest rank has at most 4/3 of the
// least possible work. Error(kInvalid) for no ranks, a negative cost or one that is not finite.
std::vector<int> assign_branches(const std::vector<double>& costs, int num_ranks);

// Collective. Seconds of each branch, forward and backward: every rank runs all branches, once and
// `repeats` times more, and takes the fastest; the result is the mean of all ranks, the same on
// all. Gradients, buffers and random numbers stay as they were. Error(kInvalid) on every rank for a
// branch that throws, and for fewer than 1 repeat.
std::vector<double> measure_branches(ProcessGroup& group, const std::vector<at::Tensor>& inputs,
                                     const std::vector<Branch>& branches, int repeats = 3);

}  // namespace paceline
