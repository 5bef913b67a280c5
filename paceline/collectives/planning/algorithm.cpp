#include "paceline/collectives/planning/algorithm.h"

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

using Ops = std::uint32_t;  // a bit each

constexpr Ops ops(std::initializer_list<Op> list) {
  Ops bits = 0;
  for (const Op op : list) bits |= Ops{1} << static_cast<unsigned>(op);
  return bits;
}

struct AlgorithmTraits {
  std::string_view name;
  Ops serves;
  Schedule (*build)(const ScheduleSpec& spec);
  Effort (*effort)(Op op, const CallSizes& sizes, double chunk);
};

// In the order of kAllAlgorithms.
constexpr std::array<AlgorithmTraits, kAllAlgorithms.size()> kTraits = {{
    {"direct", ~ops({Op::kSend, Op::kReceive}), build_direct, effort::direct},
    {"one_shot", ops({Op::kAllReduce}), build_one_shot_all_reduce, effort::one_shot},
    {"tree", ops({Op::kBroadcast, Op::kReduce}), build_tree, effort::tree},
    {"doubling", ops({Op::kAllReduce, Op::kAllGather, Op::kAllGatherV}), build_doubling,
     effort::doubling},
    {"halving", ops({Op::kAllReduce, Op::kReduceScatter}), build_halving, effort::halving},
    {"ring",
     ops({Op::kAllReduce, Op::kAllGather, Op::kAllGatherV, Op::kReduceScatter,
          Op::kReduceScatterV}),
     build_ring, effort::ring},
    {"bruck", ops({Op::kAllToAll}), build_bruck, effort::bruck},
    {"chain", ops({Op::kBroadcast}), build_chain, effort::chain},
    {"hierarchy",
     ops({Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather, Op::kAllGatherV,
          Op::kReduceScatter, Op::kReduceScatterV}),
     build_hierarchy, effort::hierarchy},
}};

const AlgorithmTraits& traits_of(Algorithm algorithm) {
  return kTraits[static_cast<std::size_t>(algorithm)];
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

std::string_view name_of(Algorithm algorithm) { return traits_of(algorithm).name; }

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == name_of(algorithm)) return algorithm;
  }
  return {};
}

bool serves(Algorithm algorithm, Op op) { return (traits_of(algorithm).serves & ops({op})) != 0; }

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
  builder.append(traits_of(algorithm).build(spec));
  if (!hears_from_all(spec)) add_later_rounds(builder, spec);
  return builder.take();
}

Effort effort_of(Algorithm algorithm, Op op, const CallSizes& sizes, double chunk) {
  Effort work = traits_of(algorithm).effort(op, sizes, chunk);
  if (has_counts(op)) {  // whose results need not hear of every rank: build()
    work.rounds += sizes.levels;
    work.messages += sizes.levels;
  }
  return work;
}

}  // namespace paceline
