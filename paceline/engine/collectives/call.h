#pragma once

// One call of a group, as a value. EngineGroup::run() and start() (group/engine_group.h) carry it
// out; the named operations of a group, on buffers and on tensors, only fill in a Call. The end of
// this header declares visits, which are another kind of call.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {

class DeviceOrder;

// The most dimensions of a tensor whose sizes can travel with its message.
inline constexpr std::size_t kMaxMessageSizes = 8;

// The destination of a message whose type and sizes the receiver does not know.
class MessageAllocator {
 public:
  virtual ~MessageAllocator() = default;
  // Allocates memory for the elements of a tensor of this type and these sizes. Called once, in the
  // thread that moves the message; the memory must stay valid until the receive has completed.
  virtual std::byte* make(Dtype dtype, std::span<const std::int64_t> sizes) = 0;
};

// The many buffers of a coalesced call, which is one operation on all of them, as if they lay one
// after the other.
struct BufferLists {
  std::span<const ConstBuffer> inputs = {};  // empty if an all_reduce or broadcast works in place
  std::span<const Buffer> outputs = {};
};

// Describes the tensors of a call in the text of an error.
class TensorShapes {
 public:
  virtual ~TensorShapes() = default;
  virtual std::string describe() const = 0;  // "Float [2, 3], strides [1, 2]"
};

// The elements and `shapes` must stay valid until the operation has completed. run() and start()
// copy everything else that a Call points to.
struct Call {
  Op op = Op::kBarrier;
  ConstBuffer input = {};  // in a send: the message
  Buffer output = {};      // in a receive: the destination
  ReduceOp reduce_op = ReduceOp::kSum;
  // The divisor of a mean, if it is not the number of ranks; the same on all ranks.
  std::optional<std::uint32_t> divisor = {};
  int root = 0;  // `root` and `peer` are ranks of the group, not of the world
  int peer = 0;  // the other rank of a message; kAnySource for a receive from any rank
  std::uint32_t tag = 0;
  // Set only in a send: the sizes travel with the message. A message without sizes cannot be
  // received into a MessageAllocator.
  std::optional<std::span<const std::int64_t>> sizes = {};
  std::shared_ptr<MessageAllocator> allocator = {};  // in a receive: used instead of output
  // In all_gather_v, the count that each rank gives; in reduce_scatter_v, the count that each rank
  // gets; in all_to_all_v, the count that this rank gives to each rank.
  std::span<const std::size_t> counts = {};
  // In all_to_all_v: the count that each rank gives to this rank.
  std::span<const std::size_t> receive_counts = {};
  std::optional<BufferLists> lists = {};  // used instead of input and output
  // A hash of the sizes and strides of the call's tensors (shape_of(), collective.h); 0 for raw
  // buffers. It must be the same on every rank, and on both ends of a message.
  std::uint32_t shape = 0;
  const TensorShapes* shapes = nullptr;  // null for raw buffers
};
// The options of a call: those of CollectiveOptions except async_op, and, on a device, the order.
struct CallOptions {
  // At least 1 ms; if empty, the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  std::shared_ptr<void> keep_alive = {};  // held until an asynchronous operation has completed
  // For device memory: the operation's order among the device's other work (device_order.h). If
  // null, the operation follows the default stream's work, and ends when its result is complete.
  std::shared_ptr<const DeviceOrder> order = {};
};

// A visit: every rank brings a buffer, a body runs on every rank, and the visit ends when all ranks
// are done. Each rank's body works on one block of *every* rank's buffer, in place if the buffers
// are symmetric. An all_reduce is a visit whose body writes the sum of all buffers to each buffer.
//
// The elements on which a body works.
struct Visit {
  std::size_t begin = 0;  // offset of these elements in each rank's buffer
  std::size_t count = 0;
  std::span<std::byte* const> data;  // by rank: the address of its elements

  template <class T>
  std::span<T> of(int rank) const {
    return {reinterpret_cast<T*>(data[static_cast<std::size_t>(rank)]), count};
  }
};

// Called for each piece of the rank's block; not called if the block is empty. The elements that a
// body writes are visible to their owners when the visit has ended.
using VisitBody = std::function<void(const Visit& visit)>;

struct VisitedBlock {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The block that `rank` visits in buffers of `count` elements. The blocks are in rank order, begin
// at multiples of 64 bytes unless they are empty, and are equally long except for the last ones.
constexpr VisitedBlock visited_block(std::size_t count, Dtype dtype, int rank, int world_size) {
  const std::size_t line = 64 / size_of(dtype);
  const auto world = static_cast<std::size_t>(world_size);
  const std::size_t lines = count / line + (count % line != 0);
  const std::size_t length = (lines / world + (lines % world != 0)) * line;
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(length, count - begin)};
}

}  // namespace paceline
