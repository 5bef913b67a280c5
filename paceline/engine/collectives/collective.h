#pragma once

// One call of a collective, as every rank must make it, and its fingerprint, which travels with
// every message so that ranks that make different calls notice it before any byte is used.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

class DeviceOrder;
class TensorShapes;
class Work;

// One pair of buffers of a coalesced call on a device; `count` is as in a call on this pair alone.
struct CollectivePart {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
};

// `count` is in elements and the same on every rank:
//   all_reduce, broadcast, reduce   the whole buffer
//   all_gather, gather              one rank's contribution; the result has world_size times as
//                                   many elements
//   scatter, reduce_scatter         one rank's result; the input has world_size times as many
//                                   elements
//   all_to_all                      one block; input and output have world_size blocks
//   all_gather_v, reduce_scatter_v  the sum of `counts`: of every rank's input, or output
//   all_to_all_v                    the sum of `counts`, a matrix with a row for each sender and a
//                                   column for each receiver
struct Collective {
  Op op = Op::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  Dtype dtype = Dtype::kUint8;
  int root = 0;
  std::size_t count = 0;
  std::uint32_t divisor = 0;           // divisor of a mean; 0 for the number of ranks
  const std::byte* input = nullptr;    // null if this rank gives nothing
  std::byte* output = nullptr;         // null if this rank gets nothing
  Device device = Device::kCpu;        // the device of input and output
  const DeviceOrder* order = nullptr;  // as CallOptions::order
  Work* work = nullptr;  // notified when the whole call is queued on the device; may be null
  // For operations with unequal counts; must outlive the call.
  std::span<const std::size_t> counts;
  // The buffers of a coalesced call on a device, instead of input and output; `count` is then the
  // sum of their counts. Must outlive the call.
  std::span<const CollectivePart> parts = {};
  std::uint32_t layout = 0;              // layout_of(counts), which the ranks compare; 0 for none
  std::uint32_t shape = 0;               // Call::shape
  const TensorShapes* shapes = nullptr;  // Call::shapes
  // The user's operation (new_group, split, visit) of which this internal collective is a part;
  // errors and records show that operation instead of `op`.
  std::optional<Op> part_of = {};
};

// If a rank's two buffers share memory, the offset in elements at which the shorter one must begin
// in the longer one: the rank's own block, or the beginning. Empty if the buffers must not overlap,
// as in all_to_all.
std::optional<std::size_t> in_place_offset(const Collective& call, int rank);

// The number of elements of a rank's input and output.
std::size_t input_count(const Collective& call, int rank, int world_size);
std::size_t output_count(const Collective& call, int rank, int world_size);

// The divisor of a mean.
inline std::size_t divisor_of(const Collective& call, int world_size) {
  return call.divisor != 0 ? call.divisor : static_cast<std::size_t>(world_size);
}

// The sum of counts; SIZE_MAX, which no valid call has, if the sum overflows.
std::size_t saturated_sum(std::span<const std::size_t> counts);

// A hash of counts, never 0. It is the `layout` of operations with unequal counts and of coalesced
// calls.
std::uint32_t layout_of(std::span<const std::size_t> counts);

// A hash of the sizes and strides of a dense tensor. Two tensors of the same sizes have the same
// hash if element i in the memory of one corresponds to element i in the memory of the other. The
// hash is 0 for one dimension, as for raw buffers. Without `strides`, it covers the sizes only.
std::uint32_t shape_of(std::span<const std::int64_t> sizes,
                       std::span<const std::int64_t> strides = {});
// Combines the hashes of the tensors of a coalesced call; 0 if all of them are 0.
std::uint32_t shape_of_all(std::span<const std::uint32_t> shapes);

// The facts of a call that all ranks must agree on, in 32 bytes. Sequence numbers count a group's
// collectives from 1.
struct Fingerprint {
  Op op = Op::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  Dtype dtype = Dtype::kUint8;
  Device device = Device::kCpu;
  std::int32_t root = 0;  // in operations without a root: divisor(), for a mean
  std::uint64_t count = 0;
  std::uint32_t sequence = 0;
  std::uint32_t layout = 0;  // Collective::layout; in a reduce, the divisor of a mean
  std::uint32_t shape = 0;   // Collective::shape
  std::uint32_t group = 0;   // a hash of the group's name and generation

  bool operator==(const Fingerprint&) const = default;
  std::uint32_t divisor() const;  // Collective::divisor
  // "all_reduce #42 (float32 x 1000, sum)".
  std::string describe() const;
};
static_assert(sizeof(Fingerprint) == 32);

Fingerprint make_fingerprint(const Collective& call, std::uint32_t sequence,
                             std::uint32_t generation, std::uint64_t group);

// Another rank of a group, as errors name it.
struct PeerName {
  std::string text;  // as Mesh::describe() returns it
  int in_world = 0;
};
// If the two fingerprints differ, throws Error(kInvalid), whose text shows both.
void require_same(const Fingerprint& mine, const Fingerprint& theirs, const std::string& self,
                  const PeerName& peer, const std::string& group_name);

}  // namespace paceline
