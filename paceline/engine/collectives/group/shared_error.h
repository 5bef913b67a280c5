#pragma once

// Functions that throw the error of one rank on all ranks of a group, so that no rank continues
// alone. They take a few small collectives, so they are for rare events. Programs use on_rank()
// (object_collectives.h).
//
// Thread safety: that of ProcessGroup.

#include <optional>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Collective. Throws root's error on every rank, if root has one.
void throw_error_of(GroupRef group, int root, const std::optional<Error>& own);
// Collective. Throws on every rank the error of the first rank that has one.
void throw_first_error(GroupRef group, const std::optional<Error>& own);

}  // namespace paceline
