#pragma once

// A group of a test's rank, for what wants to share it: the harness keeps it alive.

#include <memory>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::harness {

inline std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

}  // namespace paceline::harness
