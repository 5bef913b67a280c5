#pragma once

// Translates the group's calls into calls of NCCL, which queue operations on a stream. Thread
// safety: pure functions of their arguments, but only one call at a time may use a communicator.

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/collectives/collective.h"

namespace paceline {

// The rank's place, and the communicator and stream that carry out its calls.
struct NcclPlace {
  const NcclApi& api;
  NcclHandle communicator;
  CudaStream stream;
  int rank;
  int world_size;
  std::string_view self;  // "rank 1", for errors
};

// Whether NCCL can carry out the operation. It can move elements of any type, but cannot reduce
// int16 and has no bitwise reductions. A bool is 0 or 1, so its sum is the maximum and its product
// the minimum.
bool nccl_supports(Op op, Dtype dtype, ReduceOp reduce_op);

// Queues the call. Requires: nccl_supports(). Errors: those of NcclApi::require().
void queue_call(const Collective& call, const NcclPlace& place);

// Groups several calls of NCCL: none of them waits for another, and the device starts them
// together.
class NcclBatch {
 public:
  NcclBatch(const NcclApi& api, std::string_view self);
  ~NcclBatch();  // ends the batch, if end() was not called
  NcclBatch(const NcclBatch&) = delete;
  NcclBatch& operator=(const NcclBatch&) = delete;
  void end();

 private:
  const NcclApi& api_;
  const std::string_view self_;
  bool is_open_ = true;
};

}  // namespace paceline
