#include "paceline/engine/collectives/group/calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/objects.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/planning/cost_file.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/host.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLargeBytes = 4 << 20;
constexpr std::size_t kRepetitions = 7;
constexpr std::size_t kRounds = 8;         // of what takes milliseconds
constexpr std::size_t kShortRounds = 128;  // and microseconds

// The lower quartile of some rounds: other load only makes a round longer.
double usual_seconds(const std::function<void()>& body, std::size_t rounds = kRounds) {
  std::vector<double> seconds;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const auto quartile = seconds.begin() + static_cast<std::ptrdiff_t>(rounds / 4);
  std::nth_element(seconds.begin(), quartile, seconds.end());
  return *quartile;
}

double reduce_rate() {
  const std::vector<float> a(kLargeBytes / 8, 1.0f);
  const std::vector<float> b(kLargeBytes / 8, 2.0f);
  std::vector<float> sum(a.size());
  const std::array sources = {reinterpret_cast<const std::byte*>(a.data()),
                              reinterpret_cast<const std::byte*>(b.data())};
  const double seconds = usual_seconds([&] {
    reduce(sources, reinterpret_cast<std::byte*>(sum.data()), sum.size(), Dtype::kFloat32,
           ReduceOp::kSum);
  });
  return static_cast<double>(kLargeBytes) / std::max(seconds, 1e-9);
}

double copy_rate() {
  const std::vector<std::byte> from(kLargeBytes);
  std::vector<std::byte> to(kLargeBytes);
  const double seconds = usual_seconds([&] { std::copy(from.begin(), from.end(), to.begin()); });
  return static_cast<double>(kLargeBytes) / std::max(seconds, 1e-9);
}

// Half a round trip between this rank and `peer`; the lower rank begins.
double one_way_seconds(ProcessGroup& group, int peer, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  const auto view = std::span(data);
  const auto round_trip = [&] {
    if (group.rank() < peer) {
      group.send(view, peer);
      group.recv(view, peer);
    } else {
      group.recv(view, peer);
      group.send(view, peer);
    }
  };
  round_trip();  // connections and pages are warm
  return usual_seconds(round_trip, bytes < kLargeBytes ? kShortRounds : kRounds) / 2;
}

// Both ranks send `bytes` at the same time.
double exchange_seconds(ProcessGroup& group, int peer, std::size_t bytes) {
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> theirs(bytes);
  const auto exchange = [&] {
    const auto sent = group.send_async(std::span(mine), peer);
    group.recv(std::span(theirs), peer);
    sent->wait();
  };
  exchange();
  return usual_seconds(exchange);
}

// Inside a host a processor moves both what it sends and what it gets; a network carries both ways
// at once, and one way is measured.
enum class LinkKind { kSockets, kNetwork };

// Between `a` and `b`, on those two; the others do nothing.
void measure_link(ProcessGroup& group, int a, int b, LinkKind kind, LinkCost& link) {
  if (group.rank() != a && group.rank() != b) return;
  const int peer = group.rank() == a ? b : a;
  const double small = one_way_seconds(group, peer, 8);
  // What a processor spends is part of what a message takes: a fifth each end, by experience.
  link.message_s = small / 5;
  link.latency_s = small - 2 * link.message_s;
  const bool both = kind == LinkKind::kSockets;
  const double large =
      both ? exchange_seconds(group, peer, kLargeBytes) : one_way_seconds(group, peer, kLargeBytes);
  // On a busy machine the small message may have been the unlucky one.
  link.bytes_per_s = (both ? 2.0 : 1.0) * static_cast<double>(kLargeBytes) /
                     std::max({large - small, large / 2, 1e-9});
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return {text.data(), length};
}

struct Quantity {
  std::string_view name;
  double& (*of)(CostModel& costs);
};
constexpr std::array<Quantity, 9> kQuantities = {{
    {"network latency", [](CostModel& costs) -> double& { return costs.network.latency_s; }},
    {"network message", [](CostModel& costs) -> double& { return costs.network.message_s; }},
    {"network rate", [](CostModel& costs) -> double& { return costs.network.bytes_per_s; }},
    {"sockets latency", [](CostModel& costs) -> double& { return costs.sockets.latency_s; }},
    {"sockets message", [](CostModel& costs) -> double& { return costs.sockets.message_s; }},
    {"sockets rate", [](CostModel& costs) -> double& { return costs.sockets.bytes_per_s; }},
    {"reduce", [](CostModel& costs) -> double& { return costs.reduce_bytes_per_s; }},
    {"copy", [](CostModel& costs) -> double& { return costs.copy_bytes_per_s; }},
    {"meeting", [](CostModel& costs) -> double& { return costs.meet_s; }},
}};

// One repetition of everything that the group can show.
CostModel measure_once(ProcessGroup& group, const CostModel& known) {
  CostModel costs = known;
  const Hosts hosts = group.hosts();
  costs.reduce_bytes_per_s = reduce_rate();
  costs.copy_bytes_per_s = copy_rate();
  // Rank 0 takes part in both, so that it knows.
  const auto& local = hosts.members[0];
  if (local.size() > 1) measure_link(group, 0, local[1], LinkKind::kSockets, costs.sockets);
  if (hosts.size() > 1) {
    measure_link(group, 0, hosts.members[1][0], LinkKind::kNetwork, costs.network);
  }
  group.barrier();
  if (hosts.size() == 1 && group.transport() != "tcp") {
    costs.meet_s = usual_seconds([&] { group.barrier(); }, kShortRounds);
  }
  return costs;
}

}  // namespace

Calibration agree_on_costs(std::span<const CostModel> repetitions) {
  check(repetitions.size() >= 5, "{} repetitions are too few to compare", repetitions.size());
  Calibration agreed{repetitions.front(), {}};
  agreed.costs.spread = 0;
  for (const Quantity& quantity : kQuantities) {
    std::vector<double> values;
    for (CostModel one : repetitions) values.push_back(quantity.of(one));
    std::sort(values.begin(), values.end());
    const double median = values[values.size() / 2];
    quantity.of(agreed.costs) = median;
    if (values.front() == values.back()) continue;
    const double spread = (values[values.size() - 2] - values[1]) / median;
    agreed.spreads.push_back({quantity.name, spread});
    agreed.costs.spread = std::max(agreed.costs.spread, spread);
  }
  return agreed;
}

std::string why_not_replace(const std::optional<CostModel>& kept, const Calibration& fresh) {
  if (fresh.is_steady() || !kept || kept->spread > kSteadySpread) return {};
  return fmt::format(
      "the repetitions differ by up to {:.0f}%, so the machine was busy with something else; the "
      "costs of {} are kept, whose differed by {:.0f}%",
      fresh.costs.spread * 100, kept->origin, kept->spread * 100);
}

Calibration measure_costs(ProcessGroup& group, const CostModel& known) {
  std::vector<CostModel> repetitions;
  for (std::size_t i = 0; i < kRepetitions; ++i) repetitions.push_back(measure_once(group, known));
  Calibration calibration = agree_on_costs(repetitions);
  calibration.costs.origin = fmt::format("{} of {}", host_name(), today());
  calibration.costs = costs_from_text(broadcast_object(group, to_text(calibration.costs), 0));
  if (group.rank() != 0) calibration.spreads.clear();
  return calibration;
}

}  // namespace paceline
