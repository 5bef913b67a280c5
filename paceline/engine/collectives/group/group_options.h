#pragma once

// What a group is made with: its time limit, its connections, its choice of backend and algorithms,
// and where it records what it does.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/transport/link_options.h"

namespace paceline {

class FlightRecorder;
class Timeline;

// PyTorch's default for a group; PACELINE_TIMEOUT sets another.
inline constexpr std::chrono::milliseconds kDefaultGroupTimeout = std::chrono::minutes(30);

struct GroupOptions {
  // How long an operation may take, at least 1 ms. When not given: PACELINE_TIMEOUT's, else
  // kDefaultGroupTimeout; for groups made of a group, that group's.
  std::optional<std::chrono::milliseconds> timeout;
  LinkOptions link;
  PlanningOptions planning;
  // Where this rank's operations are recorded; null: nowhere. init_process_group() sets it
  // (open_flight_recorder), groups made of this one share it.
  std::shared_ptr<FlightRecorder> recorder;
  // Where programs record what else this rank does (timeline()); null: nowhere. As `recorder`.
  std::shared_ptr<Timeline> timeline;
  // "gloo", "cpu:paceline,cuda:nccl", ... (backends/backend_list.h); empty: paceline.
  std::string backend;
  // A thread that waits for an operation on device memory waits for its result, not only until the
  // device has been given the operation: slower, and errors appear where they happen.
  bool blocking_wait = false;
};

// Error(kInvalid), without a rank, for values that no group can have: a timeout of nothing, a
// host's name that is too long.
void require_possible(const GroupOptions& options);

}  // namespace paceline
