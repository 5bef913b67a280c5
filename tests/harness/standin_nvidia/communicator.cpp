#include "tests/harness/standin_nvidia/communicator.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "paceline/engine/collectives/kernels/reduce.h"

extern "C" void* standin_cuda_open(const void* pointer);
extern "C" void standin_cuda_close(void* opened);

namespace paceline::standin {

namespace {

// While this object exists, the calling thread may use the device memory at `pointer`.
class Open {
 public:
  explicit Open(const void* pointer) : opened_(standin_cuda_open(pointer)) {}
  ~Open() { standin_cuda_close(opened_); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  void* const opened_;
};

Dtype dtype_of_type(int type) {
  switch (type) {
    case 0:
      return Dtype::kInt8;
    case 2:
      return Dtype::kInt32;
    case 4:
      return Dtype::kInt64;
    case 6:
      return Dtype::kFloat16;
    case 7:
      return Dtype::kFloat32;
    case 8:
      return Dtype::kFloat64;
    case 9:
      return Dtype::kBfloat16;
    default:
      return Dtype::kUint8;
  }
}

ReduceOp reduce_op_of(int reduction) {
  constexpr ReduceOp kAll[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin,
                               ReduceOp::kMean};
  return kAll[reduction];
}

// Carries out a collective chunk by chunk: all ranks copy a chunk of their input to the shared
// memory, wait at a barrier, read the chunks that they need, and wait at a barrier again.
class Pieces {
 public:
  Pieces(Communicator& communicator, const Operation& operation)
      : all_(*communicator.segment),
        communicator_(communicator),
        operation_(operation),
        element_(size_of_type(operation.type)),
        rank_(static_cast<std::size_t>(communicator.rank)),
        size_(static_cast<std::size_t>(communicator.size)) {}

  void run() {
    const bool gives_blocks = operation_.kind == Kind::kReduceScatter;
    const std::size_t most = kStagingBytes / element_ / (gives_blocks ? size_ : 1);
    for (std::size_t begin = 0; begin < operation_.count; begin += most) {
      const std::size_t count = std::min(most, operation_.count - begin);
      if (gives()) give(begin, count, gives_blocks ? size_ : 1);
      if (!meet()) return;
      if (gets()) take(begin, count);
      if (!meet()) return;
    }
  }

 private:
  bool is_root() const { return operation_.peer == communicator_.rank; }
  bool gives() const { return operation_.kind != Kind::kBroadcast || is_root(); }
  bool gets() const { return operation_.kind != Kind::kReduce || is_root(); }
  bool meet() {
    return barrier(all_, communicator_.rank, communicator_.size, communicator_.is_aborted);
  }

  void give(std::size_t begin, std::size_t count, std::size_t blocks) {
    const Open open(operation_.input);
    for (std::size_t block = 0; block < blocks; ++block) {
      std::memcpy(all_.staging[rank_].data() + block * count * element_,
                  operation_.input + (block * operation_.count + begin) * element_,
                  count * element_);
    }
  }

  void take(std::size_t begin, std::size_t count) {
    const Open open(operation_.output);
    std::byte* const to = operation_.output + begin * element_;
    if (operation_.kind == Kind::kBroadcast) {
      std::memcpy(to, all_.staging[static_cast<std::size_t>(operation_.peer)].data(),
                  count * element_);
      return;
    }
    if (operation_.kind == Kind::kAllGather) {
      for (std::size_t from = 0; from < size_; ++from) {
        std::memcpy(to + from * operation_.count * element_, all_.staging[from].data(),
                    count * element_);
      }
      return;
    }
    const std::size_t block = operation_.kind == Kind::kReduceScatter ? rank_ : 0;
    std::vector<const std::byte*> sources;
    for (std::size_t from = 0; from < size_; ++from) {
      sources.push_back(all_.staging[from].data() + block * count * element_);
    }
    reduce(sources, to, count, dtype_of_type(operation_.type), reduce_op_of(operation_.reduction),
           0);
  }

  Segment& all_;
  Communicator& communicator_;
  const Operation& operation_;
  const std::size_t element_, rank_, size_;
};

struct Moving {
  const Operation* operation;
  std::size_t moved = 0;  // bytes
  bool is_started = false;
  bool is_done = false;
};

// Moves a chunk of a message into or out of the mailbox; returns whether anything changed.
bool move(Communicator& communicator, Moving& moving) {
  const Operation& operation = *moving.operation;
  const auto self = static_cast<std::size_t>(communicator.rank);
  const auto peer = static_cast<std::size_t>(operation.peer);
  const bool is_send = operation.kind == Kind::kSend;
  Mailbox& box =
      is_send ? communicator.segment->mail[self][peer] : communicator.segment->mail[peer][self];
  const std::size_t bytes = operation.count * size_of_type(operation.type);
  if (is_send) {
    if (box.is_full != 0) return false;
    if (moving.moved == bytes && moving.is_started) return moving.is_done = true;
    const std::size_t piece = std::min(bytes - moving.moved, kMailBytes);
    const Open open(operation.input);
    std::memcpy(box.data.data(), operation.input + moving.moved, piece);
    box.bytes = static_cast<std::uint32_t>(piece);
    moving.moved += piece;
    moving.is_started = true;
    box.is_full = 1;
    return true;
  }
  if (box.is_full != 1) return false;
  const std::size_t piece = std::min<std::size_t>(box.bytes, bytes - moving.moved);
  const Open open(operation.output);
  std::memcpy(operation.output + moving.moved, box.data.data(), piece);
  moving.moved += piece;
  moving.is_done = moving.moved == bytes;
  box.is_full = 0;
  return true;
}

void move_all(Communicator& communicator, std::vector<Moving> all) {
  wait_until(communicator.is_aborted, [&] {
    std::set<std::pair<Kind, int>>
        tried;  // only the first of several messages to or from a peer moves
    bool is_done = true, has_moved = true;
    while (has_moved) {
      has_moved = false;
      is_done = true;
      tried.clear();
      for (Moving& moving : all) {
        if (moving.is_done) continue;
        is_done = false;
        const Operation& operation = *moving.operation;
        if (!tried.emplace(operation.kind, operation.peer).second) continue;
        has_moved |= move(communicator, moving);
      }
    }
    return is_done;
  });
}

}  // namespace

std::size_t size_of_type(int type) { return size_of(dtype_of_type(type)); }

void carry_out(Communicator& communicator, const std::vector<Operation>& operations) {
  std::vector<Moving> messages;
  for (const Operation& operation : operations) {
    if (communicator.is_aborted) return;
    if (operation.is_message()) {
      messages.push_back({.operation = &operation});
    } else {
      Pieces(communicator, operation).run();
    }
  }
  if (!messages.empty()) move_all(communicator, std::move(messages));
}

}  // namespace paceline::standin
