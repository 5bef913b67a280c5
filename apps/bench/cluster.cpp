#include "apps/bench/cluster.h"

#include <fmt/format.h>

#include "paceline/engine/collectives/planning/cost_file.h"
#include "paceline/engine/core/counted.h"
#include "paceline/engine/core/settings.h"

namespace paceline::bench {
namespace {

constexpr double kBitsPerByte = 8;

void take(Cluster& cluster, const Setting& setting) {
  if (setting.key == "hosts") {
    cluster.hosts = setting.whole_number(1, kMostSimulatedRanks);
  } else if (setting.key == "ranks") {
    cluster.ranks = setting.whole_number(1, kMostSimulatedRanks);
  } else if (setting.key == "link") {
    cluster.link_bytes_per_s = rate(setting);
  } else if (setting.key == "latency") {
    cluster.latency_s = duration(setting);
  } else {
    throw SettingError(
        fmt::format("'{}' is not one of hosts=, ranks=, link=, latency=; for example "
                    "hosts=64,ranks=8,link=25Gbit",
                    setting.key));
  }
}

}  // namespace

CostModel Cluster::costs(CostModel costs) const {
  if (link_bytes_per_s) costs.network.bytes_per_s = *link_bytes_per_s;
  if (latency_s) costs.network.latency_s = *latency_s;
  return costs;
}

Cluster parse_cluster(std::string_view text) {
  Cluster cluster;
  bool has_hosts = false;
  for_each_setting(text, [&](const Setting& setting) {
    take(cluster, setting);
    has_hosts |= setting.key == "hosts";
  });
  if (!has_hosts)
    throw SettingError(fmt::format("{}: how many hosts? for example hosts=64,ranks=8", text));
  if (cluster.hosts > kMostSimulatedRanks / cluster.ranks) {
    throw SettingError(fmt::format("{} hosts x {} ranks are more than {} ranks", cluster.hosts,
                                   cluster.ranks, kMostSimulatedRanks));
  }
  return cluster;
}

std::string describe(const Cluster& cluster, const CostModel& costs) {
  return fmt::format("{} x {}, {:.4g} Gbit/s, {:.4g} µs; costs: {}", counted(cluster.hosts, "host"),
                     counted(cluster.ranks, "rank"), costs.network.bytes_per_s * kBitsPerByte / 1e9,
                     costs.network.latency_s * 1e6, provenance(costs));
}

}  // namespace paceline::bench
