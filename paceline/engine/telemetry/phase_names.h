#pragma once

// The number and the names of the phases (phase_times.h).

#include <array>
#include <cstddef>
#include <string_view>

#include "paceline/engine/telemetry/phase_times.h"

namespace paceline {

inline constexpr std::size_t kNumPhases = 7;

constexpr std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kNumPhases> kNames = {
      "data", "forward", "backward", "communication", "optimizer", "evaluation", "checkpoint"};
  return kNames[static_cast<std::size_t>(phase)];
}

}  // namespace paceline
