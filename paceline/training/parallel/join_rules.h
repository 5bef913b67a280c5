#pragma once

// The rules of join() (join.h).
//
// Thread safety: a value.

namespace paceline::detail {

struct JoinRules {
  // An average divides by the number of all ranks; false: by the number of ranks with inputs.
  bool divide_by_initial_world_size = true;
  // When the inputs of one rank end, every rank throws Error(kInvalid); for loops that have other
  // collectives.
  bool throw_on_early_termination = false;
};

}  // namespace paceline::detail
