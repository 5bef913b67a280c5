#include "paceline/engine/collectives/selection/algorithm.h"

#include <algorithm>

#include "paceline/engine/collectives/algorithms/message_algorithms.h"
#include "paceline/engine/collectives/algorithms/schedule_builder.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline {

namespace {

using Ops = std::uint32_t;  // a set of operations, one bit each

constexpr Ops ops(std::initializer_list<Op> list) {
  Ops bits = 0;
  for (const Op op : list) bits |= Ops{1} << static_cast<unsigned>(op);
  return bits;
}

struct AlgorithmTraits {
  std::string_view name;
  Ops serves = 0;
  Schedule (*build)(const ScheduleSpec& spec) = nullptr;
  Effort (*effort)(Op op, const CallSizes& sizes, double chunk) = nullptr;
  bool keeps_order = true;
  Ops whole_calls = 0;      // needs_whole_call()
  Ops alike = 0;            // is_alike_on_all_hosts()
  Ops alike_in_chunks = 0;  // alike if every rank's chunk has the same size
};

// In the order of kAllAlgorithms.
constexpr std::array<AlgorithmTraits, kAllAlgorithms.size()> kTraits = {{
    {.name = "direct",
     .serves = ~ops({Op::kSend, Op::kReceive}),
     .build = build_direct,
     .effort = effort::direct,
     .alike = ops({Op::kAllGather, Op::kAllToAll, Op::kReduceScatter, Op::kBarrier}),
     .alike_in_chunks = ops({Op::kAllReduce})},
    {.name = "one_shot",
     .serves = ops({Op::kAllReduce}),
     .build = build_one_shot_all_reduce,
     .effort = effort::one_shot,
     .alike = ops({Op::kAllReduce})},
    {.name = "tree",
     .serves = ops({Op::kBroadcast, Op::kReduce}),
     .build = build_tree,
     .effort = effort::tree},
    {.name = "doubling",
     .serves = ops({Op::kAllReduce, Op::kAllGather, Op::kAllGatherV}),
     .build = build_doubling,
     .effort = effort::doubling,
     .whole_calls = ops({Op::kAllGather, Op::kAllGatherV})},
    {.name = "halving",
     .serves = ops({Op::kAllReduce, Op::kReduceScatter}),
     .build = build_halving,
     .effort = effort::halving,
     .whole_calls = ops({Op::kReduceScatter})},
    {.name = "ring",
     .serves = ops({Op::kAllReduce, Op::kAllGather, Op::kAllGatherV, Op::kReduceScatter,
                    Op::kReduceScatterV}),
     .build = build_ring,
     .effort = effort::ring,
     .keeps_order = false,
     .alike = ops({Op::kAllGather, Op::kReduceScatter}),
     .alike_in_chunks = ops({Op::kAllReduce})},
    {.name = "bruck",
     .serves = ops({Op::kAllToAll}),
     .build = build_bruck,
     .effort = effort::bruck,
     .alike = ops({Op::kAllToAll})},
    {.name = "chain",
     .serves = ops({Op::kBroadcast}),
     .build = build_chain,
     .effort = effort::chain},
    {.name = "hierarchy",
     .serves = ops({Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather, Op::kAllGatherV,
                    Op::kReduceScatter, Op::kReduceScatterV}),
     .build = build_hierarchy,
     .effort = effort::hierarchy,
     .alike = ops({Op::kAllGather})},
}};

const AlgorithmTraits& traits_of(Algorithm algorithm) {
  return kTraits[static_cast<std::size_t>(algorithm)];
}

// Whether every rank's result depends on data of every rank, so that no rank can end too early.
bool hears_from_all(const ScheduleSpec& spec) {
  const OpTraits& traits = paceline::traits_of(spec.op);
  return traits.input != Extent::kNothing && !has_root(spec.op) && !has_counts(spec.op) &&
         spec.count > 0;
}

// Whether the algorithm's own first step sends to the next rank, so that no greeting (a message
// that consists only of a header) is needed.
bool begins_with_next(Algorithm algorithm, const ScheduleSpec& spec) {
  if (!hears_from_all(spec)) return false;
  if (algorithm == Algorithm::kOneShot) return true;
  if (algorithm != Algorithm::kDirect) return false;
  return spec.op != Op::kAllReduce ||
         chunk_of(spec.count, spec.world_size - 1, spec.world_size).count() > 0;
}

// Adds the rounds of a dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for
// barrier synchronization", 1988), except the first one, which is the greeting.
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
  return traits_of(algorithm).keeps_order || !reduces(op);
}

bool needs_whole_call(Algorithm algorithm, Op op) {
  return (traits_of(algorithm).whole_calls & ops({op})) != 0;
}

bool is_alike_on_all_hosts(Algorithm algorithm, const ScheduleSpec& spec) {
  if (!spec.hosts->are_equal_blocks()) return false;
  const AlgorithmTraits& traits = traits_of(algorithm);
  if ((traits.alike & ops({spec.op})) != 0) return true;
  if ((traits.alike_in_chunks & ops({spec.op})) != 0) {
    const int world = spec.world_size;
    return chunk_of(spec.count, 0, world).count() == chunk_of(spec.count, world - 1, world).count();
  }
  return algorithm == Algorithm::kHierarchy && spec.op == Op::kReduceScatter &&
         ranks_of_equal_subtrees(subtrees_by_host(*spec.hosts)) > 0;
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
  if (has_counts(op)) {  // build() adds a barrier: results need not depend on every rank
    work.rounds += sizes.levels;
    work.messages += sizes.levels;
  }
  return work;
}

}  // namespace paceline
