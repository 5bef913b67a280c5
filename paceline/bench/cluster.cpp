#include "paceline/bench/cluster.h"

#include <charconv>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "paceline/collectives/planning/cost_file.h"
#include "paceline/core/counted.h"

namespace paceline::bench {
namespace {

constexpr double kBitsPerByte = 8;
using Units = std::vector<std::pair<std::string_view, double>>;

[[noreturn]] void refuse(std::string_view key, std::string_view value, const char* allowed) {
  throw ClusterError(fmt::format("{}={}: not {}", key, value, allowed));
}

int whole_number(std::string_view key, std::string_view text) {
  int value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || stop != text.data() + text.size() || value < 1 ||
      value > kMostSimulatedRanks) {
    refuse(key, text, "a whole number from 1 to 4096");
  }
  return value;
}

double quantity(std::string_view key, std::string_view text, const Units& units,
                const char* allowed) {
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || !std::isfinite(value) || value <= 0) refuse(key, text, allowed);
  const std::string_view unit(stop, static_cast<std::size_t>(text.data() + text.size() - stop));
  for (const auto& [name, factor] : units) {
    if (unit == name) return value * factor;
  }
  refuse(key, text, allowed);
}

void take(Cluster& cluster, std::string_view key, std::string_view value) {
  if (key == "hosts") {
    cluster.hosts = whole_number(key, value);
  } else if (key == "ranks") {
    cluster.ranks = whole_number(key, value);
  } else if (key == "link") {
    const Units units = {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}};
    cluster.link_bytes_per_s =
        quantity(key, value, units, "a rate as 25Gbit (kbit, Mbit, Gbit, Tbit)") / kBitsPerByte;
  } else if (key == "latency") {
    const Units units = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    cluster.latency_s = quantity(key, value, units, "a time as 20us (us, ms, s)");
  } else {
    throw ClusterError(
        fmt::format("'{}' is not one of hosts=, ranks=, link=, latency=; for example "
                    "hosts=64,ranks=8,link=25Gbit",
                    key));
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
  std::set<std::string_view> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    const std::size_t equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    take(cluster, key, item.substr(std::min(equals + 1, item.size())));
    if (!seen.insert(key).second) throw ClusterError(fmt::format("{} is given twice", key));
    begin = end + 1;
  }
  if (!seen.contains("hosts")) {
    throw ClusterError(fmt::format("{}: how many hosts? for example hosts=64,ranks=8", text));
  }
  if (cluster.hosts > kMostSimulatedRanks / cluster.ranks) {
    throw ClusterError(fmt::format("{} hosts x {} ranks are more than {} ranks", cluster.hosts,
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
