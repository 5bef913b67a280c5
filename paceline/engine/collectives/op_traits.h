#pragma once

// The properties of the operations of a group. Each operation has a row in a table: the properties
// of all its calls. A new operation needs a row, algorithms that build its schedules, and tests.
//
// Thread safety: pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "paceline/engine/collectives/op.h"
#include "paceline/engine/core/dtype.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

// The number of elements that a rank gives or gets, expressed by the call's `count` and `counts`
// (collective.h).
enum class Extent : std::uint8_t {
  kNothing,
  kCount,     // count
  kBlocks,    // count for every rank of the group
  kOwnCount,  // counts[rank]
  kRow,       // the sum of row `rank` of the matrix `counts`
  kColumn,    // the sum of column `rank` of the matrix
};

// If a rank's two buffers share memory, the offset in the longer one at which the shorter one must
// begin.
enum class InPlace : std::uint8_t { kNever, kBeginning, kOwnBlock, kOwnCounts };

enum OpTrait : unsigned {
  kOnlyRootGives = 1,
  kOnlyRootGets = 2,
  kReduces = 4,
  kMakesGroup = 8,
  kIsMessage = 16,  // a message between two ranks, outside of the group's common order
};

struct OpTraits {
  Op op = {};
  std::string_view name;
  Extent input = Extent::kNothing;
  Extent output = Extent::kNothing;
  InPlace in_place = InPlace::kBeginning;
  unsigned traits = 0;  // OpTrait

  constexpr bool has(OpTrait trait) const { return (traits & trait) != 0; }
};

namespace detail {

using enum Op;
using enum Extent;
using enum InPlace;

// The table, indexed by the operation's number.
inline constexpr auto kOps = std::to_array<OpTraits>({
    {kAllReduce, "all_reduce", kCount, kCount, kBeginning, kReduces},
    {kBroadcast, "broadcast", kCount, kCount, kBeginning, kOnlyRootGives},
    {kReduce, "reduce", kCount, kCount, kBeginning, kOnlyRootGets | kReduces},
    {kAllGather, "all_gather", kCount, kBlocks, kOwnBlock},
    {kGather, "gather", kCount, kBlocks, kOwnBlock, kOnlyRootGets},
    {kScatter, "scatter", kBlocks, kCount, kOwnBlock, kOnlyRootGives},
    {kReduceScatter, "reduce_scatter", kBlocks, kCount, kOwnBlock, kReduces},
    {kAllToAll, "all_to_all", kBlocks, kBlocks, kNever},
    {kBarrier, "barrier"},
    {kSend, "send", kNothing, kNothing, kBeginning, kIsMessage},
    {kReceive, "recv", kNothing, kNothing, kBeginning, kIsMessage},
    {kAllocate, "allocate_symmetric"},
    {kAllGatherV, "all_gather_v", kOwnCount, kCount, kOwnCounts},
    {kReduceScatterV, "reduce_scatter_v", kCount, kOwnCount, kOwnCounts, kReduces},
    {kAllToAllV, "all_to_all_v", kRow, kColumn, kNever},
    {kNewGroup, "new_group", kNothing, kNothing, kBeginning, kMakesGroup},
    {kSplit, "split", kNothing, kNothing, kBeginning, kMakesGroup},
    {kTakeTurns, "take_turns"},
    {kVisit, "visit", kNothing, kCount},
});
static_assert([] {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (static_cast<std::size_t>(kOps[i].op) != i) return false;
  }
  return true;
}());
inline constexpr OpTraits kUnknownOp = {.name = "an unknown operation"};

}  // namespace detail

// The row of an operation; kUnknownOp for a number that only a corrupt message can contain.
constexpr const OpTraits& traits_of(Op op) {
  const auto number = static_cast<std::size_t>(op);
  return number < detail::kOps.size() ? detail::kOps[number] : detail::kUnknownOp;
}

constexpr std::string_view name_of(Op op) { return traits_of(op).name; }
// True for operations that reduce elements (ReduceOp).
constexpr bool reduces(Op op) { return traits_of(op).has(kReduces); }
// True for operations with a root.
constexpr bool has_root(Op op) {
  return traits_of(op).has(kOnlyRootGives) || traits_of(op).has(kOnlyRootGets);
}
// True for operations whose ranks give or get unequal counts.
constexpr bool has_counts(Op op) {
  return traits_of(op).input >= Extent::kOwnCount || traits_of(op).output >= Extent::kOwnCount;
}
// True for operations that make another group.
constexpr bool makes_group(Op op) { return traits_of(op).has(kMakesGroup); }

// True for operations whose counts are a matrix: a count for each sender and each receiver.
constexpr bool has_count_matrix(Op op) { return traits_of(op).input == Extent::kRow; }

// Whether an input holds a block for each rank.
constexpr bool gives_blocks(Op op) {
  const OpTraits& traits = traits_of(op);
  return traits.input == Extent::kBlocks || traits.input == Extent::kRow ||
         traits.output == Extent::kOwnCount;
}
// Whether an output holds a block for each rank.
constexpr bool gets_blocks(Op op) {
  const OpTraits& traits = traits_of(op);
  return traits.output == Extent::kBlocks || traits.output == Extent::kColumn ||
         traits.input == Extent::kOwnCount;
}

constexpr std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBitAnd:
      return "bit_and";
    case ReduceOp::kBitOr:
      return "bit_or";
    case ReduceOp::kBitXor:
      return "bit_xor";
  }
  return "unknown";
}

constexpr bool is_bitwise(ReduceOp op) { return op >= ReduceOp::kBitAnd; }

// Whether `op` is defined for `dtype`.
constexpr bool is_defined(ReduceOp op, Dtype dtype) {
  if (is_bitwise(op)) return !is_floating_point(dtype);
  if (op == ReduceOp::kMean) return is_floating_point(dtype);
  return true;
}

}  // namespace paceline
