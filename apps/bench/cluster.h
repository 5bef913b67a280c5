#pragma once

// A cluster that is not at hand, as people type it: "hosts=64,ranks=8,link=25Gbit,latency=20us".

#include <optional>
#include <string>
#include <string_view>

#include "paceline/engine/collectives/planning/cost_model.h"

namespace paceline::bench {

// The most ranks that are simulated.
inline constexpr int kMostSimulatedRanks = 4096;

struct Cluster {
  int hosts = 1;
  int ranks = 1;  // on each host
  std::optional<double> link_bytes_per_s, latency_s;
  bool operator==(const Cluster&) const = default;

  int world_size() const { return hosts * ranks; }
  // `costs` with the network given here.
  CostModel costs(CostModel costs) const;
};

// hosts and ranks (1 when not given), link in bit/s with k, M, G or T, latency with us, ms or s.
// Throws SettingError (engine/core/settings.h).
Cluster parse_cluster(std::string_view text);

// "64 hosts x 8 ranks, 25 Gbit/s, 20 µs".
std::string describe(const Cluster& cluster, const CostModel& costs);

}  // namespace paceline::bench
