#pragma once

// A communicator of the stand-in for NCCL, and its operations, which run on the streams of the
// stand-in for CUDA. As in NCCL, an operation waits on the device for the other ranks, without a
// time limit, until the communicator is aborted.

#include <atomic>
#include <string>
#include <vector>

#include "tests/harness/standin_nvidia/segment.h"

namespace paceline::standin {

enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

struct Operation {
  Kind kind = Kind::kSend;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  // elements
  int type = 1;           // ncclDataType_t
  int reduction = 0;      // ncclRedOp_t
  int peer = 0;           // the root, or the other rank of a message

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
};

struct Communicator {
  Segment* segment = nullptr;
  int rank = 0, size = 1;
  std::atomic<bool> is_aborted = false;
  std::atomic<int> state = 0;       // ncclResult_t: the asynchronous error
  std::atomic<int> still_late = 0;  // how many more times to answer ncclInProgress
  std::atomic<int> under_way = 0;   // tasks on streams
  std::atomic<int> calls = 0;       // operations that were called
  std::atomic<bool> is_connecting = true;
};

std::size_t size_of_type(int type);
// Carries out operations that were called together: the collectives one after another, then all
// messages at the same time. Called by a task of a stream.
void carry_out(Communicator& communicator, const std::vector<Operation>& operations);

}  // namespace paceline::standin
