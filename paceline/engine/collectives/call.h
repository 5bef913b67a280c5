#pragma once

// One call of a group as its user means it. All that a ProcessGroup does for its users is run() or
// start() of such a value; its named functions, and those on tensors, only fill one in.

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
#include "paceline/engine/collectives/op.h"
#include "paceline/engine/core/dtype.h"

namespace paceline {

class DeviceOrder;

// The sizes of a tensor that travel with a message of it; a message has none or up to so many.
inline constexpr std::size_t kMaxMessageSizes = 8;

// Where a message goes whose type and sizes its receiver does not know.
class MessagePlace {
 public:
  virtual ~MessagePlace() = default;
  // Memory for the elements of such a tensor, in the thread that moves the message. Called once,
  // and the memory must stay until the receive has completed.
  virtual std::byte* make(Dtype dtype, std::span<const std::int64_t> sizes) = 0;
};

// The many buffers of a coalesced call, one operation on all of them as if they lay one after the
// other.
struct BufferLists {
  std::span<const ConstBuffer> inputs = {};  // empty: all_reduce and broadcast are in place
  std::span<const Buffer> outputs = {};
};

// Describes the tensors of a call, for the message of an error.
class TensorShapes {
 public:
  virtual ~TensorShapes() = default;
  virtual std::string describe() const = 0;  // "Float [2, 3], strides [1, 2]"
};

// Nothing that it points to but the elements themselves and `shapes` need outlive the call of run()
// or start().
struct Call {
  Op op = Op::kBarrier;
  ConstBuffer input = {};  // of a send: the message
  Buffer output = {};      // of a receive: where it goes
  ReduceOp reduce_op = ReduceOp::kSum;
  // What a mean divides by, if not by the number of ranks; the same on all ranks.
  std::optional<std::uint32_t> divisor = {};
  int root = 0;  // a rank of the group, not of the world; likewise peer
  int peer = 0;  // of a message; kAnySource for a receive from any rank
  std::uint32_t tag = 0;
  // A send's: they travel with the message, which without them can go to no MessagePlace.
  std::optional<std::span<const std::int64_t>> sizes = {};
  std::shared_ptr<MessagePlace> place = {};  // of a receive: instead of output
  // all_gather_v: what each rank gives; reduce_scatter_v: what it gets; all_to_all_v: what this
  // rank gives each.
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> receive_counts = {};  // all_to_all_v: what each rank gives this one
  std::optional<BufferLists> lists = {};             // instead of input and output
  // A hash of the sizes and strides of the call's tensors (shape_of(), collective.h); 0 for raw
  // buffers. It must be the same on every rank, and on both ends of a message.
  std::uint32_t shape = 0;
  const TensorShapes* shapes = nullptr;  // owner: CallOptions::keep_alive
};
inline constexpr int kAnySource = -1;

struct CallOptions {
  // At least 1 ms; the group's when not given.
  std::optional<std::chrono::milliseconds> timeout = {};
  std::shared_ptr<void> keep_alive = {};  // held until an asynchronous operation has completed
  // For device memory: what the operation comes after, and how waiting for it comes after the
  // operation (work.h). Null: after all that the default stream has, and it ends with its result.
  std::shared_ptr<const DeviceOrder> order = {};
};

// A visit: all ranks arrive with a buffer, a body runs on every rank, and all finish. Each rank's
// body works on one block of *every* rank's buffer, in place where the ranks share memory. An
// all_reduce is the visit whose body adds up all ranks' elements and writes the sum to each.

// What a body works on.
struct Visit {
  std::size_t begin = 0;  // of these elements, in each rank's buffer
  std::size_t count = 0;
  std::span<std::byte* const> data;  // by rank: where its elements are

  template <class T>
  std::span<T> of(int rank) const {
    return {reinterpret_cast<T*>(data[static_cast<std::size_t>(rank)]), count};
  }
};

// Called once or several times, each time for a piece of the block. What it writes is there for the
// owners when the visit is done.
using VisitBody = std::function<void(const Visit& visit)>;

struct VisitedBlock {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The block that `rank` visits of buffers with `count` elements: of equal length but for the last
// ones, in the order of ranks, and beginning at multiples of 64 bytes.
constexpr VisitedBlock visited_block(std::size_t count, Dtype dtype, int rank, int world_size) {
  const std::size_t line = 64 / size_of(dtype);
  const auto world = static_cast<std::size_t>(world_size);
  const std::size_t lines = count / line + (count % line != 0);
  const std::size_t length = (lines / world + (lines % world != 0)) * line;
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(length, count - begin)};
}

}  // namespace paceline
