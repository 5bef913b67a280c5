#pragma once

// Bruck's all_to_all: blocks travel by the binary digits of their distance, so that a rank sends
// ceil(log2 p) messages of about half its buffer instead of p - 1 of one block (Bruck et al.,
// 1997). For small blocks on many ranks: every byte travels log2(p)/2 times on average.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// all_to_all. Pure.
Schedule build_bruck(const ScheduleSpec& spec);

}  // namespace paceline
