#pragma once

// The options of a group (its time limit, connections, backend, algorithms and records), and the
// options of one operation, which are the last argument of the operations on buffers
// (process_group.h) and on tensors (paceline/training/tensor/collectives.h).
//
// Thread safety: values.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/transport/link_options.h"

namespace paceline {

struct CostModel;

// The algorithms of collectives over messages. docs/network.md explains how each one works and when
// it is used. kDirect supports every collective.
enum class Algorithm : std::uint8_t {
  kDirect,
  kOneShot,
  kTree,
  kDoubling,
  kHalving,
  kRing,
  kBruck,
  kChain,
  kHierarchy,
};

// How a group carries out its collectives. All except `costs` must be the same on all ranks.
struct PlanningOptions {
  // The algorithm for all operations over messages that it supports; if empty, the planner chooses.
  std::optional<Algorithm> algorithm = {};
  // Allows algorithms whose sums do not have the promised bits, if these algorithms are faster.
  bool allows_any_order = false;
  // The costs by which the planner chooses; rank 0's costs apply. If null, a group uses the
  // calibration or, without one, the defaults of CostModel.
  std::shared_ptr<const CostModel> costs = {};
};

class FlightRecorder;
class Timeline;

struct GroupOptions {
  // The default timeout, as PyTorch's for Gloo; PACELINE_TIMEOUT sets another.
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);

  // How long an operation may take, at least 1 ms. If empty, PACELINE_TIMEOUT applies, or else
  // kDefaultTimeout; a group made from another group inherits its timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  LinkOptions link = {};
  PlanningOptions planning = {};
  // Records this rank's operations. If null, init_process_group() sets it from the environment
  // (open_flight_recorder). Groups made from a group share its recorder.
  std::shared_ptr<FlightRecorder> recorder = {};
  // Records this rank's other activities, also for the program (ProcessGroup::timeline()). Set and
  // shared like `recorder`.
  std::shared_ptr<Timeline> timeline = {};
  // "gloo", "cpu:paceline,cuda:nccl", ...; empty: paceline.
  std::string backend = {};
  // If true, a thread that waits for an operation on device memory waits for the result, not only
  // until the operation is queued on the device. This is slower, but errors appear at their cause.
  bool blocking_wait = false;
};

// The last argument of every operation of a group.
//
//   group->barrier({.timeout = 10s});
//   auto work = all_reduce(group, gradient, ReduceOp::kMean, {.async_op = true});
//   ...
//   work->wait();
struct CollectiveOptions {
  // At least 1 ms; if empty, the group's timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  // If true, the call returns a Work at once, as in torch.distributed, and the program must not
  // touch the buffers until the Work has completed. If false, the operation has ended when the call
  // returns, and the returned Work has completed. send() and recv() take no async_op; isend() and
  // irecv() return a Work.
  bool async_op = false;
  std::shared_ptr<void> keep_alive = {};  // held until an asynchronous operation has completed
};

// The peer of a receive that takes a message from any rank.
inline constexpr int kAnySource = -1;

}  // namespace paceline
