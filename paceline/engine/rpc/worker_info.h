#pragma once

// What everybody knows of a worker.

#include <cstdint>
#include <string>

namespace paceline::rpc {

enum class WorkerState : std::uint8_t {
  kPresent,
  kLeft,  // by leave()
  kLost,  // its process ended otherwise, or it has been silent for a lease
};

struct WorkerInfo {
  std::string name, role;
  WorkerState state{};
  bool operator==(const WorkerInfo&) const = default;
};

}  // namespace paceline::rpc
