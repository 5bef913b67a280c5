#pragma once

// The options with which a test runs the ranks of a group; thread_ranks.h and process_ranks.h share
// them.

#include <chrono>
#include <functional>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"

#include "tests/harness/network_hosts.h"

namespace paceline::harness {

struct RanksOptions {
  TransportKind transport = TransportKind::kAuto;
  std::string backend;  // a value for GroupOptions
  std::chrono::milliseconds group_timeout{20'000};
  std::chrono::milliseconds watchdog{60'000};
  std::string flight_directory;  // where ranks leave their flight records; empty: nowhere
  // Only for ranks that are processes: called in each child before its group is made.
  std::function<void(int rank)> before_connect;
  // Only for ranks that are processes: rank r is on host r / ranks_per_host of these hosts. Null:
  // all ranks are on this host.
  const NetworkHosts* hosts = nullptr;
  int ranks_per_host = 1;
  bool over_ipv6 = false;
  bool encrypt = false;
  int tcp_streams = 1;
  std::function<void(int rank, GroupOptions& options)> adjust;  // changes options of a rank's group
};

// The options with which `rank` makes its group.
GroupOptions group_options_of(const RanksOptions& options, int rank, int world_size);

}  // namespace paceline::harness
