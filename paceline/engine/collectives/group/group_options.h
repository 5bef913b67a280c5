#pragma once

// The options of a group: its time limit, connections, backend, algorithms and records.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/selection/planning_options.h"
#include "paceline/engine/transport/link_options.h"

namespace paceline {

class FlightRecorder;
class Timeline;

struct GroupOptions {
  // The default timeout, the same as PyTorch's; PACELINE_TIMEOUT sets another.
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);

  // How long an operation may take, at least 1 ms. If empty, PACELINE_TIMEOUT applies, or else
  // kDefaultTimeout; a group made from another group inherits its timeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  LinkOptions link = {};
  PlanningOptions planning = {};
  // Records this rank's operations; null for no records. init_process_group() sets it
  // (open_flight_recorder); groups made from this one share it.
  std::shared_ptr<FlightRecorder> recorder = {};
  // Records this rank's other activities for the program (timeline()); null for no records. Set and
  // shared as `recorder`.
  std::shared_ptr<Timeline> timeline = {};
  // "gloo", "cpu:paceline,cuda:nccl", ...; empty: paceline.
  std::string backend = {};
  // A thread that waits for an operation on device memory waits for its result, not only until the
  // operation has been queued on the device: slower, and errors appear where they happen.
  bool blocking_wait = false;
};

}  // namespace paceline
