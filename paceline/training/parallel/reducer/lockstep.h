#pragma once

// Keeps the ranks in step: LaunchTurns orders the all-reduces of several modules, with_advice()
// explains calls that do not match, and UnevenInputs tells ranks whose inputs have ended what the
// other ranks do.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"

namespace paceline {

// One backward pass can reach several wrapped modules that share a group (a generator and its
// discriminator). Their all-reduces must start in the same order on every rank, and a parameter
// that one rank does not use would change the order there. So modules take turns: all buckets of
// the module whose gradient arrived first come first, then the next module's. The modules'
// end-of-step calls come last, once all modules have ended.
//
// The modules are in the order of their first gradients in the pass on this rank. Requires: that
// order is the same on every rank. If ranks differ in which modules a pass uses, or in which module
// comes last in the graph, this is an error on all of them (PassMonitor).
//
// Thread safety: of() may be called from any thread; an object has no thread safety.
class LaunchTurns {
 public:
  // The turns of this group.
  static std::shared_ptr<LaunchTurns> of(const ProcessGroup& group);

  // Numbers the group's modules in the order of their construction, from 0.
  std::uint64_t next_number() { return num_numbers_++; }

  // Call it when a pass that averages has reached `who`, which is queued until all its all-reduces
  // have started. `go_on` is called if its turn comes later.
  void enter(const void* who, std::function<void()> go_on);
  bool is_up(const void* who) const { return !queue_.empty() && queue_.front().first == who; }
  // Call it when all all-reduces of `who` have started: lets the next module go on. Nothing happens
  // if `who` is not queued.
  void pass_on(const void* who);
  // Call it when all all-reduces of `who` have ended. `then`, which may communicate, is called once
  // all modules that the pass has reached have ended, after the calls of modules that ended before.
  // Empty: nothing is called.
  void end(const void* who, std::function<void()> then);
  // Removes `who`: its pass failed, or it is being destroyed.
  void forget(const void* who);

 private:
  std::uint64_t num_numbers_ = 0;
  using Entries = std::vector<std::pair<const void*, std::function<void()>>>;
  Entries queue_;
  std::vector<const void*> reached_;  // modules that the pass reached and that have not ended
  Entries ended_;                     // the calls of modules that have ended
};

// Returns `error` with advice if it is about collectives that do not match or about a rank that has
// left. Ranks that do not call forward() and backward() alike get such errors, although neither
// call looks like a collective.
Error with_advice(const Error& error);

// Runs `body`, which communicates for a forward or backward pass, and adds that advice to its
// errors.
template <class Body>
void in_lockstep(Body body) {
  try {
    body();
  } catch (const Error& error) {
    throw with_advice(error);
  }
}

struct JoinOptions {
  // An average divides by the number of all ranks; false: by the number of ranks with inputs.
  bool divide_by_initial_world_size = true;
  // The end of one rank's inputs is an Error(kInvalid) on every rank, for loops that have
  // collectives of their own.
  bool throw_on_early_termination = false;
};

// Lets ranks with different numbers of inputs announce what they do (join.h). Before each
// collective part of a step every rank tells the others its next action; a rank whose inputs have
// ended announces that, and joins in the others' action.
//
// Cost: one byte from every rank to every rank, each time.
//
// Thread safety: none.
class UnevenInputs {
 public:
  enum class Doing : std::uint8_t { kNothingMore, kAveragingPass, kLocalPass, kStep };
  struct Others {
    Doing doing = Doing::kNothingMore;  // the action of the ranks with inputs
    int num_active = 0;                 // ranks with inputs
    int first_active = 0;  // the first of them; if none has inputs, a rank that had inputs last
    std::int64_t divisor = 1;
  };

  UnevenInputs(std::shared_ptr<ProcessGroup> group, const JoinOptions& options)
      : group_(std::move(group)), options_(options) {}

  // Collective. Error(kInvalid), on every rank, when ranks with inputs do different things, or when
  // a rank's inputs have ended and JoinOptions makes that an error.
  Others announce(Doing own);

 private:
  void require_same(const std::vector<std::int8_t>& all) const;

  const std::shared_ptr<ProcessGroup> group_;  // owners: the model and this
  const JoinOptions options_;
  int first_active_ = 0;
};

}  // namespace paceline
