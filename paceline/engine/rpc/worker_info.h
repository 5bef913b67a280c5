#pragma once

// A worker of the job as others know it: its name, its role and its state. Thread safety: values.

#include <cstdint>
#include <string>

namespace paceline::rpc {

struct WorkerInfo {
  enum class State : std::uint8_t {
    kPresent,
    kLeft,  // it called leave()
    kLost,  // its process ended in another way, or it was silent for a lease
  };

  std::string name, role;
  State state{};
  bool operator==(const WorkerInfo&) const = default;
};

}  // namespace paceline::rpc
