#pragma once

// A chain of layers cut into stages by what the layers cost.
//
// Thread safety: a pure function.

#include <vector>

namespace paceline::pipeline {

// How many layers each stage has, one after the other, at least one: the most expensive stage costs
// as little as possible, and among such cuts the stages are as even as possible. Takes time in
// proportion to stages x layers^2. Error(kInvalid) for fewer layers than stages, no stages, and
// costs that are negative or not finite.
std::vector<int> split_by_cost(const std::vector<double>& costs, int num_stages);

}  // namespace paceline::pipeline
