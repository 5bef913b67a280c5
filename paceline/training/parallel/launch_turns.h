#pragma once

// Whose all-reduces come first, when one backward pass reaches several modules that share a group
// (a generator and its discriminator): all of the module's that got a gradient first, then the
// next module's, and last what modules do once all of them have ended. All-reduces must start in
// the same order on every rank, and a parameter that one rank does not use would otherwise change
// it there.
//
// The order of the modules is that of each one's first gradient in the pass on this rank. Requires:
// that order is the same on every rank, so a pass on which ranks differ in which modules they use,
// or in which comes last in the graph, is an error on all of them (Reducer::require_same_module()).
//
// Thread safety: none of an object; of() from any thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

class LaunchTurns {
 public:
  // The one of this group.
  static std::shared_ptr<LaunchTurns> of(const ProcessGroup& group);

  // How many were given before: the modules' numbers, in the order of their making.
  std::uint64_t next_number() { return num_numbers_++; }

  // A pass that averages reached `who`, which is queued until all its all-reduces have started;
  // `go_on` is called when its turn comes later.
  void enter(const void* who, std::function<void()> go_on);
  bool is_up(const void* who) const { return !queue_.empty() && queue_.front().first == who; }
  // All its all-reduces have started: lets the next go on. Nothing happens when it is not queued.
  void pass_on(const void* who);
  // Its all-reduces have ended. `then`, which may communicate, is called once this is so of all
  // modules that the pass has reached, after theirs that ended before. Empty: nothing is.
  void end(const void* who, std::function<void()> then);
  // Its pass failed, or it goes away.
  void forget(const void* who);

 private:
  std::uint64_t num_numbers_ = 0;
  using Entries = std::vector<std::pair<const void*, std::function<void()>>>;
  Entries queue_;
  std::vector<const void*> reached_;  // by the pass, and not ended
  Entries ended_;                     // what they do then
};

}  // namespace paceline
