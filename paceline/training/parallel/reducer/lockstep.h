#pragma once

// Keeps the ranks in step: LaunchTurns orders the all-reduces of several modules, with_advice()
// explains calls that do not match, and UnevenInputs tells ranks without inputs the next action of
// the other ranks.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/training/parallel/data_parallel_options.h"

namespace paceline {

// One backward pass can reach several wrapped modules that share a group (a generator and its
// discriminator). Their all-reduces must start in the same order on every rank, but if one rank
// does not use a parameter, the order on that rank would change. So modules take turns: first all
// buckets of the module whose gradient arrived first are started, then those of the next module.
// The modules' end-of-step calls are made last, once all modules have ended.
//
// The modules take turns in the order of their first gradients in the pass on this rank. Requires:
// that order is the same on every rank. If ranks use different modules in a pass, or different
// modules are last in the graph, every rank gets an error (PassMonitor).
//
// Thread safety: any thread may call of(); none for the other functions.
class LaunchTurns {
 public:
  // Returns the object that all modules of this group share.
  static std::shared_ptr<LaunchTurns> of(const ProcessGroup& group);

  // Returns the next number for a module of the group, from 0, in the order of construction.
  std::uint64_t next_number() { return num_numbers_++; }

  // Call it when a pass that averages has reached the module `who`, which is queued until all its
  // all-reduces have started. If it is not the module's turn yet, `go_on` is called when it is.
  void enter(const void* who, std::function<void()> go_on);
  // Whether it is the turn of `who`.
  bool has_turn(const void* who) const { return !queue_.empty() && queue_.front().first == who; }
  // Call it when all all-reduces of `who` have started: lets the next module continue. Does nothing
  // if `who` is not queued.
  void pass_on(const void* who);
  // Call it when all all-reduces of `who` have ended. Once end() has been called for every module
  // that the pass reached, their `then` functions run in the order of these calls; they may
  // communicate. `then` may be empty.
  void end(const void* who, std::function<void()> then);
  // Removes `who`, because its pass failed or it is being destroyed.
  void forget(const void* who);

 private:
  std::uint64_t num_numbers_ = 0;
  using Entries = std::vector<std::pair<const void*, std::function<void()>>>;
  Entries queue_;
  std::vector<const void*> reached_;  // modules that the pass reached and that have not ended
  Entries ended_;                     // the modules that have ended, with their calls
};

// Returns `error` with advice if it reports collectives that do not match, a time limit, or a rank
// that has left. Such errors occur when the ranks' sequences of forward() and backward() differ,
// although neither call looks like a collective.
Error with_advice(const Error& error);

// Runs `body`, which communicates for a forward or backward pass, and adds the same advice to its
// errors.
template <class Body>
void in_lockstep(Body body) {
  try {
    body();
  } catch (const Error& error) {
    throw with_advice(error);
  }
}

// Lets ranks with different numbers of inputs announce their actions (join.h). Before each
// collective part of a step every rank tells the others its next action; a rank without inputs
// announces that it has none, and joins the action of the others.
//
// Cost: each announcement sends one byte from every rank to every other rank.
//
// Thread safety: none.
class UnevenInputs {
 public:
  enum class Doing : std::uint8_t { kNothingMore, kAveragingPass, kLocalPass, kStep };
  struct Others {
    Doing doing = Doing::kNothingMore;  // the next action of the ranks with inputs
    int num_active = 0;                 // the number of ranks with inputs
    int first_active = 0;  // the first rank with inputs; if none, the rank that had inputs last
    std::int64_t divisor = 1;
    bool begins_step = true;  // no pass has averaged since the last step
  };

  UnevenInputs(std::shared_ptr<ProcessGroup> group, const detail::JoinRules& rules)
      : group_(std::move(group)), rules_(rules) {}

  // Collective. Error(kInvalid), on every rank, when ranks with inputs announce different actions,
  // or, with throw_on_early_termination, when the inputs of some but not all ranks have ended.
  Others announce(Doing own);

 private:
  void require_same(const std::vector<std::int8_t>& all) const;

  const std::shared_ptr<ProcessGroup> group_;  // shared with the model
  const detail::JoinRules rules_;
  int first_active_ = 0;
  bool begins_step_ = true;
};

}  // namespace paceline
