#pragma once

// An error of one rank that all ranks of a group shall throw, so that none goes on alone. A few
// small collectives, for what is rare.

#include <functional>
#include <optional>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Collective. Throws root's error on every rank, where there is one.
void throw_error_of(ProcessGroup& group, int root, const std::optional<Error>& own);
// Collective. Throws on every rank the error of the first rank that has one.
void throw_first_error(ProcessGroup& group, const std::optional<Error>& own);
// Collective. Only root does `action`; its failure is thrown on every rank.
void on_rank(int root, ProcessGroup& group, const std::function<void()>& action);

}  // namespace paceline
