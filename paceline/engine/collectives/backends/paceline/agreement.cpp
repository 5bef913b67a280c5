#include "paceline/engine/collectives/backends/paceline/agreement.h"

#include <array>
#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

#include "paceline/engine/collectives/backends/paceline/message_executor.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/cpu_package.h"

namespace paceline {
namespace {

// What the ranks tell each other when a group forms.
struct Terms {
  std::array<double, 10> costs{};
  std::array<char, 64> origin{};
  std::int16_t algorithm = -1;
  bool allows_any_order = false;
  bool shares_memory = false;
  bool by_package = false;
  std::int32_t package = PackagePlan::kUnknown;
};
static_assert(std::is_trivially_copyable_v<Terms>);

Terms terms_of(const PlanningOptions& options) {
  const CostModel costs = options.costs.value_or(CostModel());
  Terms terms;
  terms.costs = {costs.network.latency_s,
                 costs.network.message_s,
                 costs.network.bytes_per_s,
                 costs.sockets.latency_s,
                 costs.sockets.message_s,
                 costs.sockets.bytes_per_s,
                 costs.reduce_bytes_per_s,
                 costs.copy_bytes_per_s,
                 costs.meet_s,
                 costs.spread};
  costs.origin.copy(terms.origin.data(), terms.origin.size() - 1);
  if (options.algorithm) terms.algorithm = static_cast<std::int16_t>(*options.algorithm);
  terms.allows_any_order = options.allows_any_order;
  terms.by_package = options.by_package;
  return terms;
}

bool same_choices(const Terms& a, const Terms& b) {
  return a.algorithm == b.algorithm && a.allows_any_order == b.allows_any_order &&
         a.by_package == b.by_package;
}

// "algorithm ring, allows_any_order true, by_package false".
std::string choices_text(const Terms& terms) {
  return fmt::format(
      "algorithm {}, allows_any_order {}, by_package {}",
      terms.algorithm < 0 ? "by the planner" : name_of(static_cast<Algorithm>(terms.algorithm)),
      terms.allows_any_order, terms.by_package);
}

CostModel costs_of(const Terms& terms) {
  const auto& number = terms.costs;
  CostModel costs;
  costs.network = {number[0], number[1], number[2]};
  costs.sockets = {number[3], number[4], number[5]};
  costs.reduce_bytes_per_s = number[6];
  costs.copy_bytes_per_s = number[7];
  costs.meet_s = number[8];
  costs.spread = number[9];
  costs.origin = terms.origin.data();
  return costs;
}

Hosts hosts_of(const Mesh& mesh) {
  std::map<std::string, int> numbers;
  std::vector<int> host_of;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto number = static_cast<int>(numbers.size());
    host_of.push_back(numbers.try_emplace(mesh.peer(rank).host, number).first->second);
  }
  return Hosts::from(host_of);
}

// Fewer ranks are never several on each of several packages, and need not look.
int own_package(const Mesh& mesh, Sharing sharing, const PlanningOptions& options) {
  constexpr int kFewestRanks = 4;
  if (options.package) return *options.package;
  if (!options.by_package || sharing != Sharing::kOfAll || mesh.world_size() < kFewestRanks) {
    return PackagePlan::kUnknown;
  }
  return package_of(mesh.peer(mesh.rank()).cpus).value_or(PackagePlan::kUnknown);
}

// By the simplest algorithm, as nothing else is agreed yet; the sequence number is 0.
std::vector<Terms> terms_of_all(Mesh& mesh, Exchange& exchange, const Terms& mine,
                                const EngineOptions& options, Deadline deadline) {
  const Planner direct(hosts_of(mesh), {.algorithm = Algorithm::kDirect});
  std::vector<Terms> all(static_cast<std::size_t>(mesh.world_size()));
  const Collective call =
      all_gather_of(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  MessageExecutor(mesh, exchange, direct, nullptr)
      .run(call, make_fingerprint(call, 0, options.generation, options.group), {deadline, true});
  return all;
}

}  // namespace

Collective all_gather_of(std::span<const std::byte> mine, std::span<std::byte> all) {
  Collective call;
  call.op = Op::kAllGather;
  call.count = mine.size();
  call.input = mine.data();
  call.output = all.data();
  return call;
}

// All ranks choose by the same numbers: the hierarchy only if every host shares memory, sums by
// package only if every rank's package is known.
Agreement agree(Mesh& mesh, Exchange& exchange, Sharing sharing, const EngineOptions& options,
                Deadline deadline) {
  const Hosts hosts = hosts_of(mesh);
  PlanningOptions planning = options.planning;
  if (mesh.world_size() == 1) return {Planner(hosts, planning), {}};
  Terms mine = terms_of(planning);
  mine.shares_memory = mesh.neighbours().size() == 1 || sharing == Sharing::kOfSome;
  mine.package = own_package(mesh, sharing, planning);
  std::vector<Terms> all = terms_of_all(mesh, exchange, mine, options, deadline);
  check(same_choices(mine, all[0]),
        "{}: the options of group {} that choose algorithms (algorithm, allows_any_order, "
        "by_package or PACELINE_BY_PACKAGE) differ from those of rank 0: {} here, {} there",
        mesh.self(), mesh.name(), choices_text(mine), choices_text(all[0]));
  bool all_share = hosts.size() > 1 && hosts.size() < all.size();
  std::vector<int> packages;
  for (const Terms& theirs : all) {
    all_share &= theirs.shares_memory;
    packages.push_back(theirs.package);
  }
  all[0].origin.back() = '\0';
  planning.costs = costs_of(all[0]);
  Agreement agreed{Planner(hosts, planning, all_share), {}};
  if (sharing == Sharing::kOfAll && planning.by_package) {
    agreed.packages.emplace(packages, mesh.members());
  }
  return agreed;
}

}  // namespace paceline
