#include "apps/bench/simulated_call.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/error.h"

namespace paceline::bench {
namespace {

// Of a chain that is simulated for a longer one; by then its pace is steady.
constexpr int kLeastLinks = 8;
constexpr int kPartOfLinks = 64;
// Of a host, so that a sixteenth of them still shows how they compete for its network.
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

// Where a chain's equal links are: between hosts, or on one host between ranks.
int links_of(const Hosts& hosts) {
  return hosts.size() > 1 ? static_cast<int>(hosts.size()) : hosts.world_size();
}
Hosts with_links(const Hosts& hosts, int links) {
  const int ranks = static_cast<int>(hosts.members.front().size());
  return hosts.size() > 1 ? Hosts::blocks(links, ranks) : Hosts::blocks(1, links);
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
  const int few = std::max(kLeastLinks, links / kPartOfLinks);
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

SimulationResult simulate_hosts_in_parts(const SimulatedCall& call, const Planner& planner) {
  const Hosts& hosts = planner.hosts();
  const int num_hosts = static_cast<int>(hosts.size());
  const int ranks = static_cast<int>(hosts.members.front().size());
  const std::array fewer = {ranks / 4, ranks / 8, ranks / 16};  // what is too long is seen first
  SimulationResult result;
  double messages = 0, bytes = 0;
  for (const int some : fewer) {
    SimulatedCall part = call;
    // A rank's chunk stays as large as it is, so that the parts differ in one thing.
    if (call.op == Op::kAllReduce && call.algorithm != Algorithm::kOneShot) {
      const auto world = static_cast<std::size_t>(hosts.world_size());
      part.count = (call.count + world - 1) / world * static_cast<std::size_t>(num_hosts * some);
    }
    const auto one = simulate_at_once(part, Hosts::blocks(num_hosts, some), planner.costs());
    double weight = 1;  // Lagrange's
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
        links_of(hosts) > 2 * kLeastLinks) {
      return simulate_chain_in_parts(call, planner);
    }
    if (grows_with_ranks(call) && hosts.are_equal_blocks() && hosts.size() > 1 &&
        hosts.members.front().size() >= kManyRanks) {
      return simulate_hosts_in_parts(call, planner);
    }
    throw;
  }
}

}  // namespace paceline::bench
