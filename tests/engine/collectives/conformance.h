#pragma once

// The conformance suite: what every backend must do alike. Each check is called by every rank with
// its group, and leaves the group as good as it was. It uses the expectations of GoogleTest.

#include <span>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::conformance {

struct Check {
  const char* name;
  void (*run)(ProcessGroup& group);
};

std::span<const Check> checks();

}  // namespace paceline::conformance
