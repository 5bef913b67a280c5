#pragma once

// The operations that can be measured, sizes as people type them, and bandwidths computed from a
// time. The words and formulas are those of nccl-tests (doc/PERFORMANCE.md): bytes are those of the
// largest buffer that one rank holds; algorithm bandwidth = bytes / time; bus bandwidth = algorithm
// bandwidth x a factor for the operation and the number of ranks, so that it can be compared with
// the hardware's.
//
// Thread safety: pure functions and values.

#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/collective.h"

namespace paceline::bench {

// A measured operation: a collective, all_reduce of many buffers in one call, or a send to the next
// rank (Op::kSend, "send_recv").
struct Operation {
  Op op = Op::kAllReduce;
  bool is_coalesced = false;

  Operation() = default;
  Operation(Op collective, bool coalesced = false) : op(collective), is_coalesced(coalesced) {}
  bool operator==(const Operation&) const = default;
};
// The number of equal parts into which the buffer of a coalesced call is divided.
inline constexpr std::size_t kCoalescedBuffers = 64;

enum class Placement { kInPlace, kOutOfPlace };
// Whether the buffers are in memory that the ranks share.
enum class MemoryKind { kSymmetric, kOrdinary };

// Like paceline::name_of(Op); also "all_reduce_coalesced" and "send_recv".
std::string_view name_of(Operation operation);
std::string_view name_of(Placement placement);
std::string_view name_of(MemoryKind memory);

// The operations that can be measured, in the order in which they are listed and measured.
const std::vector<Operation>& measurable_ops();
std::optional<Operation> op_named(std::string_view name);
// Whether the planner can predict the operation.
bool is_plannable(Operation operation);

// Whether the operation is measured with this placement. broadcast, reduce and coalesced calls have
// one buffer only; send_recv and the operations on blocks, except all_gather, have two.
bool has_form(Operation operation, Placement placement);
// The placement with which the operation is usually called.
Placement usual_placement(Operation operation);
// Returns `wanted` if the operation is measured with that placement, otherwise the usual one.
Placement placement_for(Operation operation, std::optional<Placement> wanted);

// The count of a call with buffers of `bytes`: the elements of the whole buffer or of one block, as
// in Collective::count of operations with equal counts. Rounded up to whole elements in every
// block. 0 for a barrier.
std::size_t count_for(Operation operation, Dtype dtype, int world_size, std::size_t bytes);
// Returns `sizes` without each size that results in the same call as the previous size. The result
// is ascending if `sizes` is; {0} for a barrier.
std::vector<std::size_t> different_sizes(Operation operation, Dtype dtype, int world_size,
                                         std::span<const std::size_t> sizes);
// The inverse of count_for(): the bytes of a buffer with that `count`.
std::size_t bytes_of(Operation operation, Dtype dtype, int world_size, std::size_t count);
// The number of elements in one block, for a call with equal counts.
std::size_t block_count(const Collective& call);
// Like input_count() and output_count(), but also for send_recv.
std::size_t elements_in(const Collective& call, int rank, int world_size);
std::size_t elements_out(const Collective& call, int rank, int world_size);

double bus_factor(Operation operation, int world_size);
// In 10^9 bytes per second; 0 if `bytes` or `seconds` is 0.
double algorithm_bandwidth(std::size_t bytes, double seconds);

inline constexpr std::size_t kLargestSize = std::size_t(1) << 30;

// An invalid list of sizes. The message names the wrong part and what is allowed.
class SizeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads sizes as people type them: "4K,64K,1M", and ranges "8:1G" (each size is 4 times the
// previous one) or "8:1G:2" (2 times). K, M and G are powers of 1024; "KB" and "KiB" mean the same.
// The result ascends without duplicates; each size is from 1 to kLargestSize. Throws SizeError.
std::vector<std::size_t> parse_sizes(std::string_view text);

}  // namespace paceline::bench
