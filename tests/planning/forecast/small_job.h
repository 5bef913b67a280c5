#pragma once

// Jobs and machines with round numbers, whose forecasts can be computed by hand.

#include "paceline/planning/forecast/job_profile.h"
#include "paceline/planning/forecast/machine.h"

namespace paceline::planning {

// `blocks` blocks, each with 1,000 parameters and, for each sample, 1 ms forward, 2 ms backward,
// 100 bytes of activations and 10 bytes of output; nothing else.
inline JobProfile job_of_blocks(int blocks) {
  JobProfile profile;
  profile.program = "blocks";
  for (int i = 0; i < blocks; ++i) {
    profile.layers.push_back({.name = "block " + std::to_string(i),
                              .is_block = true,
                              .parameters = 1000,
                              .forward = {.sample_s = 1e-3},
                              .backward = {.sample_s = 2e-3},
                              .activation_bytes = 100,
                              .output_bytes = 10});
  }
  profile.schedules = {"1f1b"};
  return profile;
}

// The same job with tensor parallelism that divides everything, with two exchanges per layer.
inline JobProfile divisible_job(int blocks, std::int64_t most_parts) {
  JobProfile profile = job_of_blocks(blocks);
  for (LayerProfile& layer : profile.layers) {
    layer.divisible = {.time = 1, .parameters = 1, .activations = 1};
    layer.exchanges = 2;
  }
  profile.most_parts = most_parts;
  return profile;
}

// A machine on which communication takes no time.
inline Machine ideal_machine(int hosts, int ranks_per_host) {
  Machine machine{.hosts = hosts, .ranks_per_host = ranks_per_host};
  machine.links.network = {.latency_s = 0, .message_s = 0, .bytes_per_s = 1e30};
  machine.links.sockets = machine.links.network;
  machine.links.reduce_bytes_per_s = machine.links.copy_bytes_per_s = 1e30;
  machine.links.meet_s = 0;
  return machine;
}

}  // namespace paceline::planning
