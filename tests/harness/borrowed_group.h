#pragma once

// Gives code that wants shared ownership a pointer to a test's group. The harness keeps the group
// alive.

#include <memory>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::harness {

inline std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

}  // namespace paceline::harness
