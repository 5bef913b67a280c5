#pragma once

// The operations of a group, and what all calls of one have in common: a row of a table. A new
// operation is a row, the algorithms that build its schedules, and tests.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace paceline {

// The numbers are part of the wire format.
enum class Op : std::uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kGather = 4,
  kScatter = 5,
  kReduceScatter = 6,
  kAllToAll = 7,
  kBarrier = 8,
  kSend = 9,
  kReceive = 10,
  kAllocate = 11,  // of symmetric memory; count is in bytes
  kAllGatherV = 12,
  kReduceScatterV = 13,
  kAllToAllV = 14,
  kNewGroup = 15,  // the ranks compare which members they name
  kSplit = 16,
  kTakeTurns = 17,  // in a library that serves one group of a process at a time
  kVisit = 18,      // a body runs on every rank's buffers (visit.h)
};

// How many elements a rank gives or gets, by the call's `count` and `counts` (collective.h).
enum class Extent : std::uint8_t {
  kNothing,
  kCount,     // count
  kBlocks,    // count for every rank of the group
  kOwnCount,  // counts[rank]
  kRow,       // the sum of row `rank` of the matrix `counts`
  kColumn,    // likewise of its column
};

// Where in the longer of a rank's two buffers the shorter one may begin when they share memory.
enum class InPlace : std::uint8_t { kNever, kBeginning, kOwnBlock, kOwnCounts };

struct OpTraits {
  Op op = {};
  std::string_view name;
  Extent input = Extent::kNothing;
  Extent output = Extent::kNothing;
  InPlace in_place = InPlace::kBeginning;
  bool only_root_gives = false;
  bool only_root_gets = false;
  bool reduces = false;
  bool makes_group = false;
  bool is_message = false;  // between two ranks, outside of the group's common order
};

namespace detail {

// By number.
inline constexpr auto kOps = std::to_array<OpTraits>({
    {.op = Op::kAllReduce,
     .name = "all_reduce",
     .input = Extent::kCount,
     .output = Extent::kCount,
     .reduces = true},
    {.op = Op::kBroadcast,
     .name = "broadcast",
     .input = Extent::kCount,
     .output = Extent::kCount,
     .only_root_gives = true},
    {.op = Op::kReduce,
     .name = "reduce",
     .input = Extent::kCount,
     .output = Extent::kCount,
     .only_root_gets = true,
     .reduces = true},
    {.op = Op::kAllGather,
     .name = "all_gather",
     .input = Extent::kCount,
     .output = Extent::kBlocks,
     .in_place = InPlace::kOwnBlock},
    {.op = Op::kGather,
     .name = "gather",
     .input = Extent::kCount,
     .output = Extent::kBlocks,
     .in_place = InPlace::kOwnBlock,
     .only_root_gets = true},
    {.op = Op::kScatter,
     .name = "scatter",
     .input = Extent::kBlocks,
     .output = Extent::kCount,
     .in_place = InPlace::kOwnBlock,
     .only_root_gives = true},
    {.op = Op::kReduceScatter,
     .name = "reduce_scatter",
     .input = Extent::kBlocks,
     .output = Extent::kCount,
     .in_place = InPlace::kOwnBlock,
     .reduces = true},
    {.op = Op::kAllToAll,
     .name = "all_to_all",
     .input = Extent::kBlocks,
     .output = Extent::kBlocks,
     .in_place = InPlace::kNever},
    {.op = Op::kBarrier, .name = "barrier"},
    {.op = Op::kSend, .name = "send", .is_message = true},
    {.op = Op::kReceive, .name = "recv", .is_message = true},
    {.op = Op::kAllocate, .name = "allocate_symmetric"},
    {.op = Op::kAllGatherV,
     .name = "all_gather_v",
     .input = Extent::kOwnCount,
     .output = Extent::kCount,
     .in_place = InPlace::kOwnCounts},
    {.op = Op::kReduceScatterV,
     .name = "reduce_scatter_v",
     .input = Extent::kCount,
     .output = Extent::kOwnCount,
     .in_place = InPlace::kOwnCounts,
     .reduces = true},
    {.op = Op::kAllToAllV,
     .name = "all_to_all_v",
     .input = Extent::kRow,
     .output = Extent::kColumn,
     .in_place = InPlace::kNever},
    {.op = Op::kNewGroup, .name = "new_group", .makes_group = true},
    {.op = Op::kSplit, .name = "split", .makes_group = true},
    {.op = Op::kTakeTurns, .name = "take_turns"},
    {.op = Op::kVisit, .name = "visit", .output = Extent::kCount},
});
static_assert([] {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (static_cast<std::size_t>(kOps[i].op) != i) return false;
  }
  return true;
}());
inline constexpr OpTraits kUnknownOp = {.name = "an unknown operation"};

}  // namespace detail

// Of an operation that only a stranger's message can name: a row of nothing.
constexpr const OpTraits& traits_of(Op op) {
  const auto number = static_cast<std::size_t>(op);
  return number < detail::kOps.size() ? detail::kOps[number] : detail::kUnknownOp;
}

constexpr std::string_view name_of(Op op) { return traits_of(op).name; }
// True for operations that add elements up.
constexpr bool reduces(Op op) { return traits_of(op).reduces; }
// True for operations with a root.
constexpr bool has_root(Op op) {
  return traits_of(op).only_root_gives || traits_of(op).only_root_gets;
}
// True for operations whose ranks give or get unequal counts.
constexpr bool has_counts(Op op) {
  return traits_of(op).input >= Extent::kOwnCount || traits_of(op).output >= Extent::kOwnCount;
}
// True for those that make another group.
constexpr bool makes_group(Op op) { return traits_of(op).makes_group; }

// True for those of them whose counts are a matrix, of what each rank sends to each.
constexpr bool has_count_matrix(Op op) { return traits_of(op).input == Extent::kRow; }

// Whether an input holds a block for each rank.
constexpr bool gives_blocks(Op op) {
  const OpTraits& traits = traits_of(op);
  return traits.input == Extent::kBlocks || traits.input == Extent::kRow ||
         traits.output == Extent::kOwnCount;
}
// Whether an output does.
constexpr bool gets_blocks(Op op) {
  const OpTraits& traits = traits_of(op);
  return traits.output == Extent::kBlocks || traits.output == Extent::kColumn ||
         traits.input == Extent::kOwnCount;
}

}  // namespace paceline
