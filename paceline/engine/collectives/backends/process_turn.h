#pragma once

// For a library that serves one group of a process at a time: at most one group is inside it, and
// all ranks of that group are at once.
//
// Groups that share processes may be used in another order on each of them. If each process let in
// the first to come, two groups could wait inside for each other. So the ranks of a group first
// try, each in its process, and ask each other: when all have the turn they go on, otherwise no
// rank keeps it. A group that fails queues in the order of the ranks in the job: no rank waits for
// a turn before those of all lower ones are held, which cannot end in a circle (ordered acquisition
// of resources: Havender, "Avoiding deadlock in multitasking systems", 1968).
//
// Cost: one agreement of the group's ranks a turn; when another group is inside, one more for each
// rank.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

// Gives the turn back when it is destroyed. Thread safety: all methods are safe.
class ProcessTurn {
 public:
  // Null when another group of this process has it for longer than `wait`.
  static std::shared_ptr<ProcessTurn> take(std::chrono::nanoseconds wait);
  // The turn will not be given back, or may not be.
  static bool is_lost();
  ~ProcessTurn();
  ProcessTurn(const ProcessTurn&) = delete;
  ProcessTurn& operator=(const ProcessTurn&) = delete;

  // No thread waits any more for the call that has the turn, which may never return: the turn
  // counts as lost from three seconds later on, until it does.
  void give_up();
  // The library cannot serve another group any more: the turn is never given back.
  void keep();

 private:
  ProcessTurn() = default;

  bool is_taken_ = false;
};

// A collective of the group: true when every rank says `mine`.
using Agree = std::function<bool(bool mine)>;

// Collective: returns on every rank once all have their process's turn. Requires: every rank of the
// group has arrived, so that no rank keeps a turn for one that may yet wait for another group.
// `world_ranks` are those of the group's members in the job. Errors, after which no turn is kept:
// Agree's, the mesh's failures, kSystem when the turn is lost, and kTimeout when another group of
// this process does not give it back by the deadline.
std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what);

}  // namespace paceline
