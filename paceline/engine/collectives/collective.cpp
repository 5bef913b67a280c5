#include "paceline/engine/collectives/collective.h"

#include <algorithm>
#include <numeric>

#include <xxhash.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::size_t unequal_count(Extent extent, const Collective& call, int rank, int world_size) {
  const auto self = static_cast<std::size_t>(rank);
  const auto world = static_cast<std::size_t>(world_size);
  switch (extent) {
    case Extent::kOwnCount:
      return call.counts[self];
    case Extent::kRow:
      return sum(call.counts.subspan(self * world, world));
    case Extent::kColumn: {
      std::size_t total = 0;
      for (std::size_t from = 0; from < world; ++from) total += call.counts[from * world + self];
      return total;
    }
    default:
      return 0;
  }
}

// Inline, because a small call needs this number four times.
inline std::size_t elements_of(Extent extent, const Collective& call, int rank, int world_size) {
  if (extent == Extent::kCount) return call.count;
  if (extent == Extent::kBlocks) return call.count * static_cast<std::size_t>(world_size);
  return unequal_count(extent, call, rank, world_size);
}

}  // namespace

std::optional<std::size_t> in_place_offset(const Collective& call, int rank) {
  switch (traits_of(call.op).in_place) {
    case InPlace::kBeginning:
      return 0;
    case InPlace::kOwnBlock:
      return call.count * static_cast<std::size_t>(rank);
    case InPlace::kOwnCounts:
      return sum(call.counts.first(static_cast<std::size_t>(rank)));
    case InPlace::kNever:
      break;
  }
  return {};
}

std::size_t input_count(const Collective& call, int rank, int world_size) {
  const OpTraits& op = traits_of(call.op);
  return op.has(kOnlyRootGives) && rank != call.root
             ? 0
             : elements_of(op.input, call, rank, world_size);
}

std::size_t output_count(const Collective& call, int rank, int world_size) {
  const OpTraits& op = traits_of(call.op);
  return op.has(kOnlyRootGets) && rank != call.root
             ? 0
             : elements_of(op.output, call, rank, world_size);
}

std::size_t saturated_sum(std::span<const std::size_t> counts) {
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    if (__builtin_add_overflow(total, count, &total)) return SIZE_MAX;
  }
  return total;
}

std::uint32_t layout_of(std::span<const std::size_t> counts) {
  const auto hash = static_cast<std::uint32_t>(XXH3_64bits(counts.data(), counts.size_bytes()));
  return std::max(hash, 1u);
}

std::uint32_t shape_of(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  if (sizes.size() == 1) return 0;
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  std::uint64_t hash = XXH3_64bits(sizes.data(), sizes.size_bytes());
  for (std::size_t dim = 0; dim < strides.size() && !is_empty; ++dim) {
    // The stride of a dimension of size 1 has no meaning.
    const std::int64_t stride = sizes[dim] == 1 ? 0 : strides[dim];
    hash = XXH3_64bits_withSeed(&stride, sizeof stride, hash);
  }
  return std::max(static_cast<std::uint32_t>(hash), 1u);
}

std::uint32_t shape_of_all(std::span<const std::uint32_t> shapes) {
  if (std::ranges::all_of(shapes, [](std::uint32_t shape) { return shape == 0; })) return 0;
  const auto hash = static_cast<std::uint32_t>(XXH3_64bits(shapes.data(), shapes.size_bytes()));
  return std::max(hash, 1u);
}

std::uint32_t Fingerprint::divisor() const {
  if (!reduces(op)) return 0;
  return has_root(op) ? layout : static_cast<std::uint32_t>(root);
}

std::string Fingerprint::describe() const {
  std::string text = fmt::format("{} #{}", name_of(op), sequence);
  const auto function = function_of(shape);
  if (op == Op::kBarrier && !function.empty()) return fmt::format("{} (in {})", text, function);
  if (op == Op::kBarrier || makes_group(op)) return text;
  text += fmt::format(" ({} x {}", name_of(dtype), count);
  if (reduces(op)) text += fmt::format(", {}", name_of(reduce_op));
  if (divisor() != 0) text += fmt::format(" by {}", divisor());
  if (has_root(op)) text += fmt::format(", root {}", root);
  if (device == Device::kCuda) text += ", on cuda";
  if (layout != 0 && layout != divisor()) text += fmt::format(", counts {:08x}", layout);
  if (!function.empty()) {
    text += fmt::format(", in {}", function);
  } else if (shape != 0) {
    text += fmt::format(", shape {:08x}", shape);
  }
  return text + ")";
}

Fingerprint make_fingerprint(const Collective& call, std::uint32_t sequence,
                             std::uint32_t generation, std::uint64_t group) {
  Fingerprint fingerprint;
  fingerprint.op = call.part_of.value_or(call.op);
  fingerprint.reduce_op = reduces(call.op) ? call.reduce_op : ReduceOp::kSum;
  fingerprint.dtype = call.dtype;
  fingerprint.device = call.device;
  fingerprint.count = call.count;
  fingerprint.sequence = sequence;
  fingerprint.layout = call.layout;
  fingerprint.shape = call.shape;
  if (has_root(call.op)) {
    fingerprint.root = call.root;
    if (reduces(call.op)) fingerprint.layout = call.divisor;
  } else if (reduces(call.op)) {
    fingerprint.root = static_cast<std::int32_t>(call.divisor);
  }
  // Different generations of a group never share a store key; if they meet anyway, their hashes
  // differ.
  fingerprint.group = static_cast<std::uint32_t>(group ^ (generation * 0x9e3779b97f4a7c15u));
  return fingerprint;
}

void require_same(const Fingerprint& mine, const Fingerprint& theirs, const std::string& self,
                  const PeerName& peer, const std::string& group_name) {
  if (mine == theirs) return;
  if (mine.group != theirs.group) {
    fail(ErrorCode::kInvalid, {.ranks = {peer.in_world}},
         "{}: {} sent a message of another group or generation to group {}", self, peer.text,
         group_name);
  }
  Fingerprint reshaped = theirs;
  reshaped.shape = mine.shape;
  const std::string_view own = function_of(mine.shape), other = function_of(theirs.shape);
  std::string cure;
  if (own != other) {
    const bool is_own = !own.empty();
    const std::string_view second = is_own ? other : own;
    cure = fmt::format(
        ", so every rank must call {}; if every rank does, only some ranks called {} before it",
        is_own ? own : other, !second.empty() ? second : name_of(is_own ? theirs.op : mine.op));
  } else if (mine == reshaped) {
    cure =
        ", with tensors of the same sizes and strides (tensor.contiguous() gives the default "
        "strides)";
  } else if (mine.layout != theirs.layout && mine.divisor() == theirs.divisor()) {
    cure = ", with the same list of counts";
  }
  fail(ErrorCode::kInvalid, {.ranks = {peer.in_world}},
       "{}: collectives do not match in group {}: this rank called {}, {} called {}; every "
       "rank must make the same calls in the same order{}",
       self, group_name, mine.describe(), peer.text, theirs.describe(), cure);
}

}  // namespace paceline
