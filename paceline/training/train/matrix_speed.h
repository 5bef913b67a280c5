#pragma once

// How fast this job's ranks multiply matrices: what a model's speed is compared with.

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::train {

// Collective. Floating-point operations a second of float32 products of 768 x 768 matrices, of all
// ranks together while all of them multiply, with the threads that each has: of the fastest product
// of each, because other programs make single ones slower. Takes about a quarter of a second. The
// same on every rank.
double measure_matrix_speed(ProcessGroup& group);

}  // namespace paceline::train
