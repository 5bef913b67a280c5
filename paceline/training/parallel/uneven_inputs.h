#pragma once

// What ranks with different numbers of inputs tell each other while they train (join.h): before
// each collective part of a step every rank says what it is about to do, and those whose inputs
// have ended say so and do the same.
//
// Cost: one byte from every rank to every rank, each time.
//
// Thread safety: none.

#include <cstdint>
#include <memory>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct JoinOptions {
  // An average divides by the number of all ranks; false: by that of the ranks with inputs.
  bool divide_by_initial_world_size = true;
  // The end of one rank's inputs is an Error(kInvalid) on every rank, for loops that have
  // collectives of their own.
  bool throw_on_early_termination = false;
};

class UnevenInputs {
 public:
  enum class Doing : std::uint8_t { kNothingMore, kAveragingPass, kLocalPass, kStep };
  struct Others {
    Doing doing = Doing::kNothingMore;  // what those with inputs do
    int num_active = 0;
    int first_active = 0;  // a rank that has inputs; when none has: one that had them last
    std::int64_t divisor = 1;
  };

  UnevenInputs(std::shared_ptr<ProcessGroup> group, const JoinOptions& options)
      : group_(std::move(group)), options_(options) {}

  // Collective. Error(kInvalid), on every rank, when those with inputs do different things, or one
  // has no more and that is to be an error.
  Others announce(Doing own);

 private:
  void require_same(const std::vector<std::int8_t>& all) const;

  const std::shared_ptr<ProcessGroup> group_;  // owners: the model and this
  const JoinOptions options_;
  int first_active_ = 0;
};

}  // namespace paceline
