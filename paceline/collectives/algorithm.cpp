#include "paceline/collectives/algorithm.h"

#include <algorithm>

#include "paceline/collectives/algorithms/bruck.h"
#include "paceline/collectives/algorithms/chain.h"
#include "paceline/collectives/algorithms/direct.h"
#include "paceline/collectives/algorithms/hierarchy.h"
#include "paceline/collectives/algorithms/recursive.h"
#include "paceline/collectives/algorithms/ring.h"
#include "paceline/collectives/algorithms/schedule_builder.h"
#include "paceline/collectives/algorithms/subtrees.h"
#include "paceline/collectives/algorithms/tree.h"

namespace paceline {
namespace {

Schedule build_plain(Algorithm algorithm, const ScheduleSpec& spec) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return build_direct(spec);
    case Algorithm::kOneShot:
      return build_one_shot_all_reduce(spec);
    case Algorithm::kTree:
      return build_tree(spec);
    case Algorithm::kDoubling:
      return build_doubling(spec);
    case Algorithm::kHalving:
      return build_halving(spec);
    case Algorithm::kRing:
      return build_ring(spec);
    case Algorithm::kBruck:
      return build_bruck(spec);
    case Algorithm::kChain:
      return build_chain(spec);
    case Algorithm::kHierarchy:
      return build_hierarchy(spec);
  }
  return {};
}

// Whether every rank's result needs something of every rank, so that nobody can end too early.
bool hears_from_all(const ScheduleSpec& spec) {
  switch (spec.op) {
    case Op::kAllReduce:
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return spec.count > 0;
    default:
      return false;
  }
}

// Whether every rank's first step sends to the next rank anyway.
bool begins_with_next(Algorithm algorithm, const ScheduleSpec& spec) {
  if (!hears_from_all(spec)) return false;
  if (algorithm == Algorithm::kOneShot) return true;
  if (algorithm != Algorithm::kDirect) return false;
  return spec.op != Op::kAllReduce ||
         chunk_of(spec.count, spec.world_size - 1, spec.world_size).count() > 0;
}

// Rounds of a dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988) but for the first, which is the greeting.
void add_later_rounds(ScheduleBuilder& builder, const ScheduleSpec& spec) {
  const int world = spec.world_size;
  for (int distance = 2; distance < world; distance *= 2) {
    builder.await((spec.rank - distance / 2 + world) % world);
    builder.send_greeting((spec.rank + distance) % world);
    builder.receive_greeting((spec.rank - distance + world) % world);
  }
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kOneShot:
      return "one_shot";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kDoubling:
      return "doubling";
    case Algorithm::kHalving:
      return "halving";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kBruck:
      return "bruck";
    case Algorithm::kChain:
      return "chain";
    case Algorithm::kHierarchy:
      return "hierarchy";
  }
  return "unknown";
}

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == name_of(algorithm)) return algorithm;
  }
  return {};
}

bool serves(Algorithm algorithm, Op op) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return op != Op::kSend && op != Op::kReceive;
    case Algorithm::kOneShot:
      return op == Op::kAllReduce;
    case Algorithm::kTree:
      return op == Op::kBroadcast || op == Op::kReduce;
    case Algorithm::kDoubling:
      return op == Op::kAllReduce || op == Op::kAllGather || op == Op::kAllGatherV;
    case Algorithm::kHalving:
      return op == Op::kAllReduce || op == Op::kReduceScatter;
    case Algorithm::kRing:
      return op == Op::kAllReduce || op == Op::kAllGather || op == Op::kAllGatherV ||
             op == Op::kReduceScatter || op == Op::kReduceScatterV;
    case Algorithm::kBruck:
      return op == Op::kAllToAll;
    case Algorithm::kChain:
      return op == Op::kBroadcast;
    case Algorithm::kHierarchy:
      return op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce ||
             op == Op::kAllGather || op == Op::kAllGatherV || op == Op::kReduceScatter ||
             op == Op::kReduceScatterV;
  }
  return false;
}

bool keeps_order(Algorithm algorithm, Op op) {
  return algorithm != Algorithm::kRing || !reduces(op);
}

bool needs_whole_call(Algorithm algorithm, Op op) {
  return (algorithm == Algorithm::kDoubling && op != Op::kAllReduce) ||
         (algorithm == Algorithm::kHalving && op == Op::kReduceScatter);
}

bool is_alike_on_all_hosts(Algorithm algorithm, const ScheduleSpec& spec) {
  if (!spec.hosts->are_equal_blocks()) return false;
  const auto has_equal_chunks = [&] {
    const int world = spec.world_size;
    return chunk_of(spec.count, 0, world).count() == chunk_of(spec.count, world - 1, world).count();
  };
  switch (spec.op) {
    case Op::kAllReduce:
      if (algorithm == Algorithm::kOneShot) return true;
      return (algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing) &&
             has_equal_chunks();
    case Op::kAllGather:
      return algorithm != Algorithm::kDoubling;  // which sends two runs around the end
    case Op::kAllToAll:
      return true;
    case Op::kReduceScatter:
      if (algorithm == Algorithm::kHierarchy) {
        return ranks_of_equal_subtrees(subtrees_by_host(*spec.hosts)) > 0;
      }
      return algorithm != Algorithm::kHalving;
    case Op::kBarrier:
      return true;
    default:
      return false;
  }
}

Schedule build(Algorithm algorithm, const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const int world = spec.world_size;
  if (world > 1 && !begins_with_next(algorithm, spec)) {
    builder.send_greeting((spec.rank + 1) % world);
    builder.receive_greeting((spec.rank - 1 + world) % world);
  }
  builder.append(build_plain(algorithm, spec));
  if (!hears_from_all(spec)) add_later_rounds(builder, spec);
  return builder.take();
}

}  // namespace paceline
