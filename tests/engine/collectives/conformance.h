#pragma once

// The conformance suite: the behaviour that all backends must share. Every rank calls each check
// with its group; after the check the group still works. It uses the expectations of GoogleTest.

#include <span>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::conformance {

struct Check {
  const char* name;
  void (*run)(ProcessGroup& group);
};

std::span<const Check> checks();

}  // namespace paceline::conformance
