#pragma once

// A chain of layers cut into stages by what the layers cost.
//
// Thread safety: pure functions.

#include <vector>

namespace paceline::pipeline {

// How many layers each stage has, one after the other, at least one: the most expensive stage costs
// as little as possible, and among such cuts the stages are as even as possible. Takes time in
// proportion to stages x layers^2. Error(kInvalid) for fewer layers than stages, no stages, and
// costs that are negative or not finite.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages);

// The same for ranks that have several stages (plan.h): first the rank that has most to do has as
// little as possible, as far as moving single layers from such a cut to the stage before or behind
// leads; then the most expensive stage. Takes time in proportion to stages^3 for each step.
std::vector<int> split_by_cost(const std::vector<double>& costs,
                               const std::vector<int>& rank_of_stage);

}  // namespace paceline::pipeline
