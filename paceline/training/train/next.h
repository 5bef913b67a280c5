#pragma once

// A program's decision at the end of an epoch (training_run.h).

#include <cstdint>

namespace paceline::train {

// Whether a run continues after an epoch.
enum class Next : std::uint8_t { kContinue, kStop };

}  // namespace paceline::train
