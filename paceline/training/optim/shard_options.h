#pragma once

// How an optimizer's step, its gradients and the parameters are divided among ranks; fully_shard()
// (training/parallel/fully_shard.h) makes it from a stage.

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

// How OptimizerCore::shard() divides a step. A plain value.
struct ShardOptions {
  // Keeps one copy of the parameters for all ranks of a host. Error(kUnsupported) if these ranks
  // share no memory, or if hosts have different numbers of ranks.
  bool node_shared = false;
  // Names of parameters(), for the message about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about this many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units chosen by the caller, such as a block's parameters; unit_bytes applies to all other
  // parameters.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps only the parts of its ranks, and a
  // unit is whole on a host only while operations read it (divided_parameters.h).
  bool shard_across_hosts = false;
};

}  // namespace paceline::optim
