#pragma once

// The algorithms and their properties; each is a row of the table in algorithm.cpp.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/selection/cost_model.h"

namespace paceline {

inline constexpr std::array kAllAlgorithms = {
    Algorithm::kDirect,   Algorithm::kOneShot, Algorithm::kTree,
    Algorithm::kDoubling, Algorithm::kHalving, Algorithm::kRing,
    Algorithm::kBruck,    Algorithm::kChain,   Algorithm::kHierarchy};

// "direct", "one_shot", ...
std::string_view name_of(Algorithm algorithm);
std::optional<Algorithm> algorithm_named(std::string_view name);
// Whether the algorithm is defined for the operation.
bool serves(Algorithm algorithm, Op op);
// Whether sums have the bits that kernels/reduce.h promises; false only for sums by the ring.
bool keeps_order(Algorithm algorithm, Op op);
// Whether the algorithm needs the blocks of the whole call side by side, so that the call cannot be
// divided into pieces.
bool needs_whole_call(Algorithm algorithm, Op op);

// Whether all hosts take the same time, so that one of them can stand for all. Then a rank's
// schedule equals the schedule of the rank at the same position of the previous host, with every
// peer one host further (wrapping around), except for the order of receives and of copies. On a
// single host, it equals the schedule of the previous rank, with every peer one rank further. False
// if the hosts do not have the same number of consecutive ranks. Requires: spec.hosts.
bool is_alike_on_all_hosts(Algorithm algorithm, const ScheduleSpec& spec);

// Builds one rank's schedule over messages: the algorithm's steps, and the messages by which every
// rank learns that all others have begun (algorithms/schedule.h). Pure. Requires: serves(algorithm,
// spec.op); spec.chunk for kChain, spec.hosts for kHierarchy.
Schedule build(Algorithm algorithm, const ScheduleSpec& spec);

// The effort of build()'s schedule. `chunk`: the bytes of a chain's chunk.
Effort effort_of(Algorithm algorithm, Op op, const CallSizes& sizes, double chunk = 0);

}  // namespace paceline
