#include "apps/bench/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/option_text.h"

#include "apps/bench/report.h"

namespace paceline::bench {

namespace {

constexpr double kBitsPerByte = 8;
constexpr int kMaxSimulatedRanks = 4096;

void take(Cluster& cluster, const Setting& setting) {
  if (setting.key == "hosts") {
    cluster.hosts = setting.whole_number(1, kMaxSimulatedRanks);
  } else if (setting.key == "ranks") {
    cluster.ranks = setting.whole_number(1, kMaxSimulatedRanks);
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
    throw SettingError(fmt::format("{}: hosts= is missing; for example hosts=64,ranks=8", text));
  if (cluster.hosts > kMaxSimulatedRanks / cluster.ranks) {
    throw SettingError(fmt::format("{} hosts x {} ranks are more than {} ranks", cluster.hosts,
                                   cluster.ranks, kMaxSimulatedRanks));
  }
  return cluster;
}

std::string describe(const Cluster& cluster, const CostModel& costs) {
  return fmt::format("{} x {}, {:.4g} Gbit/s, {:.4g} µs; costs: {}", counted(cluster.hosts, "host"),
                     counted(cluster.ranks, "rank"), costs.network.bytes_per_s * kBitsPerByte / 1e9,
                     costs.network.latency_s * 1e6, provenance(costs));
}

namespace {

// The number of links in a short chain that is simulated in place of a longer one: at least
// kMinLinks, so that the pace is steady, and at least 1/kPartOfLinks of the longer chain.
constexpr int kMinLinks = 8;
constexpr int kPartOfLinks = 64;
// From this number of ranks per host on, a sixteenth of the ranks is enough to show how they
// compete for the host's network.
constexpr std::size_t kManyRanks = 128;

SimulationResult simulate_at_once(const SimulatedCall& call, const Hosts& hosts,
                                  const CostModel& costs) {
  ScheduleSpec spec{call.op, 0, hosts.world_size(), 0, call.count, call.count, call.count};
  spec.chunk = call.chunk;
  spec.hosts = &hosts;
  const SimulationOptions options{.element_bytes = size_of(call.dtype),
                                  .partial_bytes = partial_size_of(call.dtype),
                                  .hosts_are_alike = is_alike_on_all_hosts(call.algorithm, spec),
                                  .most_steps = call.most_steps};
  const auto schedule_of = [&](int rank) {
    spec.rank = rank;
    return build(call.algorithm, spec);
  };
  return simulate({hosts, costs}, schedule_of, options);
}

// The number of links in a chain: each host or, on a single host, each rank counts as one link.
int links_of(const Hosts& hosts) {
  return hosts.size() > 1 ? static_cast<int>(hosts.size()) : hosts.world_size();
}
Hosts with_links(const Hosts& hosts, int links) {
  const int ranks = static_cast<int>(hosts.members.front().size());
  return hosts.size() > 1 ? Hosts::blocks(links, ranks) : Hosts::blocks(1, links);
}

// Whether simulate_hosts_in_parts() can handle the call.
bool grows_with_ranks(const SimulatedCall& call) {
  switch (call.algorithm) {
    case Algorithm::kOneShot:
      return true;
    case Algorithm::kDirect:
      return call.op == Op::kAllReduce || call.op == Op::kReduceScatter ||
             call.op == Op::kAllGather || call.op == Op::kAllToAll;
    case Algorithm::kRing:
      return true;
    default:
      return false;
  }
}

}  // namespace

SimulationResult simulate_reduce_in_parts(const SimulatedCall& call, const Planner& planner) {
  const auto world = static_cast<std::size_t>(planner.hosts().world_size());
  SimulatedCall part = call;
  part.count = (call.count + world - 1) / world;
  part.op = Op::kReduceScatter;
  SimulationResult result = simulate_at_once(part, planner.hosts(), planner.costs());
  part.op = Op::kGather;
  const SimulationResult gather = simulate_at_once(part, planner.hosts(), planner.costs());
  result.seconds += gather.seconds;
  result.num_messages += gather.num_messages;
  result.network_bytes += gather.network_bytes;
  return result;
}

SimulationResult simulate_chain_in_parts(const SimulatedCall& call, const Planner& planner) {
  const int links = links_of(planner.hosts());
  const int few = std::max(kMinLinks, links / kPartOfLinks);
  const int more = 2 * few;
  const auto short_chain =
      simulate_at_once(call, with_links(planner.hosts(), few), planner.costs());
  const auto long_chain =
      simulate_at_once(call, with_links(planner.hosts(), more), planner.costs());
  const double times = static_cast<double>(links - more) / (more - few);
  const auto whole = [&](auto shorter, auto longer) {
    const auto value = static_cast<double>(longer);
    return value + times * (value - static_cast<double>(shorter));
  };
  SimulationResult result;
  result.seconds = whole(short_chain.seconds, long_chain.seconds);
  result.num_messages =
      static_cast<std::uint64_t>(whole(short_chain.num_messages, long_chain.num_messages));
  result.network_bytes =
      static_cast<std::uint64_t>(whole(short_chain.network_bytes, long_chain.network_bytes));
  return result;
}

SimulationResult simulate_hosts_in_parts(const SimulatedCall& call, const Planner& planner) {
  const Hosts& hosts = planner.hosts();
  const int num_hosts = static_cast<int>(hosts.size());
  const int ranks = static_cast<int>(hosts.members.front().size());
  const std::array fewer = {ranks / 4, ranks / 8, ranks / 16};  // the longest simulation first
  SimulationResult result;
  double messages = 0, bytes = 0;
  for (const int some : fewer) {
    SimulatedCall part = call;
    // Keeps the size of a rank's chunk, so that the parts differ only in the number of ranks.
    if (call.op == Op::kAllReduce && call.algorithm != Algorithm::kOneShot) {
      const auto world = static_cast<std::size_t>(hosts.world_size());
      part.count = (call.count + world - 1) / world * static_cast<std::size_t>(num_hosts * some);
    }
    const auto one = simulate_at_once(part, Hosts::blocks(num_hosts, some), planner.costs());
    double weight = 1;  // of Lagrange's interpolation
    for (const int other : fewer) {
      if (other != some) weight *= static_cast<double>(ranks - other) / (some - other);
    }
    result.seconds += weight * one.seconds;
    messages += weight * static_cast<double>(one.num_messages);
    bytes += weight * static_cast<double>(one.network_bytes);
  }
  result.num_messages = static_cast<std::uint64_t>(std::llround(messages));
  result.network_bytes = static_cast<std::uint64_t>(std::llround(bytes));
  return result;
}

SimulationResult simulate_call(const SimulatedCall& call, const Planner& planner) {
  const Hosts& hosts = planner.hosts();
  try {
    return simulate_at_once(call, hosts, planner.costs());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    if (call.op == Op::kReduce && call.algorithm == Algorithm::kDirect) {
      return simulate_reduce_in_parts(call, planner);
    }
    if (call.algorithm == Algorithm::kChain && hosts.are_equal_blocks() &&
        links_of(hosts) > 2 * kMinLinks) {
      return simulate_chain_in_parts(call, planner);
    }
    if (grows_with_ranks(call) && hosts.are_equal_blocks() && hosts.size() > 1 &&
        hosts.members.front().size() >= kManyRanks) {
      return simulate_hosts_in_parts(call, planner);
    }
    throw;
  }
}

namespace {

constexpr const char* kColumns = "{:>8} {:1} {:<10} {:>13} {:>11} {:>8} {:>8} {:>10} {:>11}";

// The most simulated steps (about a second) for an algorithm that is shown only for comparison.
constexpr std::size_t kMaxComparedSteps = 500'000;

void simulate_into(Forecast& forecast, const Planner& planner, std::size_t count) {
  const Candidate& candidate = forecast.candidate;
  SimulatedCall call{forecast.op, forecast.dtype, count, candidate.algorithm, candidate.chunk};
  if (!forecast.is_chosen) call.most_steps = kMaxComparedSteps;
  try {
    forecast.simulated = simulate_call(call, planner);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    forecast.refusal =
        forecast.is_chosen
            ? error.what()
            : fmt::format(
                  "not simulated, because it takes long; to simulate it alone: --algorithm {}",
                  name_of(candidate.algorithm));
  }
}

std::string microseconds(double seconds) { return rounded_text(seconds * 1e6); }

// The deviation of `predicted` from `measured`, for example "+12%".
std::string error_text(double predicted, double measured) {
  return fmt::format("{:+.0f}%", (predicted / measured - 1) * 100);
}

}  // namespace

std::vector<Forecast> forecast(const Planner& planner, Op op, Dtype dtype, std::size_t bytes,
                               Which which) {
  const int world = planner.hosts().world_size();
  const std::size_t count = count_for(op, dtype, world, bytes);
  std::vector<Forecast> forecasts;
  for (const Candidate& candidate : planner.candidates({op, dtype, count})) {
    Forecast one;
    one.op = op;
    one.dtype = dtype;
    one.world_size = world;
    one.bytes = op == Op::kBarrier ? 0 : bytes_of(op, dtype, world, count);
    one.candidate = candidate;
    one.is_chosen = forecasts.empty();
    simulate_into(one, planner, count);
    forecasts.push_back(std::move(one));
    if (which == Which::kChosen) break;
  }
  return forecasts;
}

std::string forecast_heading(const Forecast& first) {
  std::string text(paceline::name_of(first.op));
  if (first.op != Op::kBarrier) text += fmt::format(", {}", paceline::name_of(first.dtype));
  text += fmt::format(", {}\n\n", counted(first.world_size, "rank"));
  text += fmt::format(kColumns, "size", "", "algorithm", "simulated µs", "planned µs", "algbw",
                      "busbw", "messages", "network");
  if (first.measured_s) {
    text += fmt::format(" {:>12} {:>10} {:>8}", "measured µs", "simulated", "planned");
  }
  return text + "\n";
}

std::string forecast_rows(const std::vector<Forecast>& forecasts) {
  std::string text;
  for (const Forecast& row : forecasts) {
    const bool is_timed = row.simulated.has_value();
    const double seconds = is_timed ? row.simulated->seconds : row.candidate.seconds;
    const double algbw = algorithm_bandwidth(row.bytes, seconds);
    const auto bandwidth = [&](double value) {
      return row.bytes == 0 ? std::string("-") : fmt::format("{:.3f}", value);
    };
    text += fmt::format(kColumns, row.bytes == 0 ? "-" : size_text(row.bytes),
                        row.is_chosen ? "*" : "", paceline::name_of(row.candidate.algorithm),
                        is_timed ? microseconds(seconds) : "-", microseconds(row.candidate.seconds),
                        bandwidth(algbw), bandwidth(algbw * bus_factor(row.op, row.world_size)),
                        is_timed ? fmt::to_string(row.simulated->num_messages) : "-",
                        is_timed ? size_text(row.simulated->network_bytes) : "-");
    if (row.measured_s) {
      text += fmt::format(" {:>12} {:>10} {:>8}", microseconds(*row.measured_s),
                          is_timed ? error_text(seconds, *row.measured_s) : "-",
                          error_text(row.candidate.seconds, *row.measured_s));
    }
    text += row.refusal.empty() ? "\n" : fmt::format("  {}\n", row.refusal);
  }
  return text;
}

std::string to_json(const std::vector<Forecast>& forecasts, const Planner& planner) {
  using Json = nlohmann::ordered_json;
  const Hosts& hosts = planner.hosts();
  Json json{{"costs", planner.costs().origin},
            {"hosts", hosts.size()},
            {"ranks", hosts.world_size()},
            {"link_bytes_per_s", planner.costs().network.bytes_per_s},
            {"latency_s", planner.costs().network.latency_s},
            {"units", {{"time", "us"}, {"bandwidth", "1e9 bytes/s"}}},
            {"rows", Json::array()}};
  for (const Forecast& row : forecasts) {
    Json one{{"operation", paceline::name_of(row.op)},
             {"dtype", paceline::name_of(row.dtype)},
             {"bytes", row.bytes},
             {"algorithm", paceline::name_of(row.candidate.algorithm)},
             {"chosen", row.is_chosen},
             {"planned", row.planned_us()}};
    if (row.simulated) {
      one["simulated"] = row.simulated->seconds * 1e6;
      one["messages"] = row.simulated->num_messages;
      one["network_bytes"] = row.simulated->network_bytes;
    } else {
      one["refusal"] = row.refusal;
    }
    if (row.measured_s) one["measured"] = *row.measured_s * 1e6;
    json["rows"].push_back(std::move(one));
  }
  return json_text(json, 1) + "\n";
}

}  // namespace paceline::bench
