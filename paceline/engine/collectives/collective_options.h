#pragma once

// The last argument of every operation of a group, on buffers (group/process_group.h) and on
// tensors (paceline/training/tensor/collectives.h).
//
//   group->barrier({.timeout = 10s});
//   auto work = all_reduce(group, gradient, ReduceOp::kMean, {.async_op = true});
//   ...
//   work->wait();
//
// Thread safety: values.

#include <chrono>
#include <memory>
#include <optional>

namespace paceline {

struct CollectiveOptions {
  // At least 1 ms; if empty, the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  // As in torch.distributed, the operation returns a Work at once, and the program must not touch
  // its buffers until the Work has completed. Otherwise the operation has ended when the call
  // returns, and the returned pointer is null. send() and recv() take no async_op; isend() and
  // irecv() return a Work.
  bool async_op = false;
  std::shared_ptr<void> keep_alive = {};  // held until an asynchronous operation has completed
};

// In a receive: a message from any rank.
inline constexpr int kAnySource = -1;

}  // namespace paceline
