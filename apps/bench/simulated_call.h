#pragma once

// One call by one algorithm in the simulator: at once where that is possible, otherwise in parts
// that are. A direct reduce of thousands of ranks is so many messages, a broadcast along a chain of
// them so many chunks, and an all_to_all among many ranks of few hosts as many as their square.
//
// Thread safety: pure.

#include "paceline/engine/collectives/planning/algorithm.h"
#include "paceline/engine/collectives/planning/planner.h"
#include "paceline/engine/collectives/simulation/simulator.h"

namespace paceline::bench {

struct SimulatedCall {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::size_t count = 0;  // as in Collective; root is rank 0
  Algorithm algorithm = Algorithm::kDirect;
  std::size_t chunk = 0;                // elements, of the algorithms that cut
  std::size_t most_steps = kMostSteps;  // at once
};

// Error(kUnsupported) when it is too long to simulate in parts too.
SimulationResult simulate_call(const SimulatedCall& call, const Planner& planner);

// The parts. A direct reduce: every rank's chunk is added up, which is a reduce_scatter, then all
// go to the root, as in a gather; messages overlap a little more in truth.
SimulationResult simulate_reduce_in_parts(const SimulatedCall& call, const Planner& planner);
// A chain: each host more (each rank, on one host) takes the same time, so that two short chains
// tell what a long one takes, and how many messages, but for some greetings of each rank. Requires:
// equal blocks of ranks (Hosts), more than 16 of them.
SimulationResult simulate_chain_in_parts(const SimulatedCall& call, const Planner& planner);
// Everybody with everybody, on hosts of many ranks: time, messages and bytes grow as a quadratic
// function of a host's ranks, which a sixteenth, an eighth and a quarter of them tell. Requires:
// equal blocks of at least 128 ranks on several hosts, grows_with_ranks(call).
SimulationResult simulate_hosts_in_parts(const SimulatedCall& call, const Planner& planner);
// Every rank does as much with every other one, or with every one in a ring.
bool grows_with_ranks(const SimulatedCall& call);

}  // namespace paceline::bench
