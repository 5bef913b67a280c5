#include "apps/bench/operation.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::bench {

namespace {

// The number of blocks in the largest buffer.
std::size_t blocks_of(Op op, int world_size) {
  return gives_blocks(op) || gets_blocks(op) ? static_cast<std::size_t>(world_size) : 1;
}

}  // namespace

std::string_view name_of(Operation operation) {
  if (operation.is_coalesced) return "all_reduce_coalesced";
  return operation.op == Op::kSend ? "send_recv" : paceline::name_of(operation.op);
}

std::string_view name_of(Placement placement) {
  return placement == Placement::kInPlace ? "in" : "out";
}

std::string_view name_of(MemoryKind memory) {
  return memory == MemoryKind::kSymmetric ? "symmetric" : "ordinary";
}

const std::vector<Operation>& measurable_ops() {
  static const auto& ops = *new std::vector<Operation>{Op::kAllReduce,
                                                       Op::kReduceScatter,
                                                       Op::kAllGather,
                                                       Op::kBroadcast,
                                                       Op::kReduce,
                                                       Op::kAllToAll,
                                                       Op::kGather,
                                                       Op::kScatter,
                                                       Op::kBarrier,
                                                       Op::kAllGatherV,
                                                       Op::kReduceScatterV,
                                                       Op::kAllToAllV,
                                                       {Op::kAllReduce, true},
                                                       Op::kSend};
  return ops;
}

std::optional<Operation> op_named(std::string_view name) {
  for (const Operation operation : measurable_ops()) {
    if (name_of(operation) == name) return operation;
  }
  return {};
}

bool is_plannable(Operation operation) {
  return !operation.is_coalesced && operation.op != Op::kSend && !has_counts(operation.op);
}

bool has_form(Operation operation, Placement placement) {
  const Op op = operation.op;
  if (!operation.is_coalesced && (op == Op::kAllReduce || op == Op::kAllGather)) return true;
  return placement == usual_placement(operation);
}

Placement usual_placement(Operation operation) {
  const Op op = operation.op;
  const bool in_place = op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce;
  return in_place ? Placement::kInPlace : Placement::kOutOfPlace;
}

Placement placement_for(Operation operation, std::optional<Placement> wanted) {
  return wanted && has_form(operation, *wanted) ? *wanted : usual_placement(operation);
}

std::size_t count_for(Operation operation, Dtype dtype, int world_size, std::size_t bytes) {
  if (operation.op == Op::kBarrier) return 0;
  const std::size_t parts = operation.is_coalesced ? kCoalescedBuffers : 1;
  const std::size_t unit = size_of(dtype) * blocks_of(operation.op, world_size) * parts;
  return std::max<std::size_t>(1, (bytes + unit - 1) / unit) * parts;
}

std::vector<std::size_t> different_sizes(Operation operation, Dtype dtype, int world_size,
                                         std::span<const std::size_t> sizes) {
  if (operation.op == Op::kBarrier) return {0};
  std::vector<std::size_t> different;
  std::optional<std::size_t> last;
  for (const std::size_t size : sizes) {
    const std::size_t count = count_for(operation, dtype, world_size, size);
    if (count != last) different.push_back(size);
    last = count;
  }
  return different;
}

std::size_t bytes_of(Operation operation, Dtype dtype, int world_size, std::size_t count) {
  return count * size_of(dtype) * blocks_of(operation.op, world_size);
}

std::size_t block_count(const Collective& call) {
  return has_counts(call.op) ? call.counts.front() : call.count;
}

std::size_t elements_in(const Collective& call, int rank, int world_size) {
  return call.op == Op::kSend ? call.count : input_count(call, rank, world_size);
}

std::size_t elements_out(const Collective& call, int rank, int world_size) {
  return call.op == Op::kSend ? call.count : output_count(call, rank, world_size);
}

double bus_factor(Operation operation, int world_size) {
  const double n = world_size;
  if (operation.op == Op::kAllReduce) return 2 * (n - 1) / n;
  return gives_blocks(operation.op) || gets_blocks(operation.op) ? (n - 1) / n : 1;
}

double algorithm_bandwidth(std::size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

namespace {

constexpr std::size_t kDefaultFactor = 4;
constexpr std::size_t kLargestFactor = 1024;

// The factor that the suffix of a number stands for: 1 for no suffix, 0 for an unknown one.
std::size_t unit_of(std::string_view suffix) {
  if (suffix.ends_with("iB")) {
    suffix.remove_suffix(2);
    if (suffix.empty()) return 0;
  } else if (suffix.ends_with("B")) {
    suffix.remove_suffix(1);
  }
  if (suffix.empty()) return 1;
  if (suffix == "K" || suffix == "k") return 1 << 10;
  if (suffix == "M") return 1 << 20;
  if (suffix == "G") return 1 << 30;
  return 0;
}

std::size_t number_of(std::string_view text, std::size_t largest, std::string_view what,
                      bool with_unit) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  const std::size_t unit = with_unit ? unit_of(suffix) : suffix.empty();
  if (status != std::errc() || unit == 0 || value == 0 || value > largest / unit) {
    throw SizeError(fmt::format("'{}' is not {}", text, what));
  }
  return value * unit;
}

std::size_t size_of(std::string_view text) {
  return number_of(text, kLargestSize, "a size from 1 to 1G (like 8, 64K, 1M)", true);
}

void add_range(const std::vector<std::string_view>& parts, std::string_view text,
               std::set<std::size_t>& sizes) {
  const std::size_t first = size_of(parts[0]), last = size_of(parts[1]);
  const std::size_t factor =
      parts.size() == 3 ? number_of(parts[2], kLargestFactor, "a factor from 2 to 1024", false)
                        : kDefaultFactor;
  if (first > last) throw SizeError(fmt::format("'{}' runs from large to small", text));
  if (factor < 2) throw SizeError(fmt::format("'{}' is not a factor from 2 to 1024", parts[2]));
  for (std::size_t size = first; size <= last; size *= factor) sizes.insert(size);
}

}  // namespace

std::vector<std::size_t> parse_sizes(std::string_view text) {
  std::set<std::size_t> sizes;
  for (const std::string_view item : split(text, ',')) {
    const auto parts = split(item, ':');
    if (parts.size() == 1) {
      sizes.insert(size_of(item));
    } else if (parts.size() <= 3) {
      add_range(parts, item, sizes);
    } else {
      throw SizeError(fmt::format("'{}' is not a size or FIRST:LAST[:FACTOR]", item));
    }
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace paceline::bench
