#pragma once

// For a library that serves one group of a process at a time: at most one group is inside it, and
// all ranks of that group are at once.
//
// Groups that share processes may be used in another order on each of them. If each process let in
// whoever comes first, two groups could wait inside for each other. So the ranks of a group first
// try, each in its process, and ask each other: when all have the turn they go, otherwise nobody
// keeps it. Who fails queues in the order of the ranks in the job: no rank waits for a turn before
// those of all lower ones are held, which cannot end in a circle (ordered acquisition of resources:
// Havender, "Avoiding deadlock in multitasking systems", 1968).
//
// Cost: one agreement of the group's ranks a turn; when another group is inside, one more for each
// rank.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/core/deadline.h"
#include "paceline/transport/mesh.h"

namespace paceline {

// Gives the turn back when it is destroyed, in any thread.
class ProcessTurn {
 public:
  // Null when another group of this process has it for longer than `wait`.
  static std::shared_ptr<ProcessTurn> take(std::chrono::nanoseconds wait);
  ~ProcessTurn();
  ProcessTurn(const ProcessTurn&) = delete;
  ProcessTurn& operator=(const ProcessTurn&) = delete;

 private:
  ProcessTurn() = default;
};

// A collective of the group: true when every rank says `mine`.
using Agree = std::function<bool(bool mine)>;

// Collective: returns on every rank once all have their process's turn. Requires: every rank of the
// group has come, so that nobody keeps a turn for one who may yet wait for another group.
// `world_ranks` are those of the group's members in the job. Errors: Agree's, the mesh's failures,
// and kTimeout when another group of this process does not give the turn back by the deadline; none
// is kept then.
std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what);

}  // namespace paceline
