#pragma once

// The result of explain(): a verdict, and a sentence for people.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline {

enum class Verdict : std::uint8_t {
  kNothing,       // no rank is waiting; no current group is known to have finished a collective
  kFinished,      // no rank is waiting; the last collective that a group finished is known
  kStraggler,     // as kFinished, but one rank kept the others waiting
  kMismatch,      // ranks called different operations
  kDied,          // a process ended, and its record does not say why
  kNeverEntered,  // a rank did not arrive at the operation in which others wait
  kStuck,         // all arrived, but the operation did not end
  kCrossed,       // ranks wait for each other in different groups
  kMessage,       // a send without a matching receive, or a receive without a send
  kFailed,        // another failure; the sentence quotes the rank's error
  kUndecided,     // an operation did not end; the records that would show why are missing
};
// The name for programs, such as "never_entered".
std::string_view name_of(Verdict verdict);

struct Explanation {
  Verdict verdict = Verdict::kNothing;
  std::string sentence;
  std::vector<int> ranks;      // the ranks that the verdict is about; empty if not known
  std::string group;           // the group that the verdict is about; empty if none
  std::uint32_t sequence = 0;  // the collective at which `group` is stuck, or that it finished last
  double waited_seconds = 0;   // the longest known wait; for a straggler, the total that it caused
};

// Explains in one sentence what the flight records of a job's ranks show: which rank is missing,
// which died, which made a different call. A pure function of decoded records, which read_flights()
// returns.
//
// Method. In each group, a rank has a *position*: the last collective that it finished and the
// first that it did not finish. The group is *stuck* at the lowest sequence number that some rank
// did not finish. If ranks describe that operation differently, it is a mismatch. Ranks without a
// record of it never entered it; if one of them is inside another stuck group, the search
// continues in that group, and groups that wait for each other are reported as crossed.
//
// A group that has failed refuses every call, so calls made after the failure do not count as
// entered. A failure after which the rank continued counts only if the job is over and nothing else
// explains the job's end.
//
// Nothing is guessed: a rank without a file, or on another machine, is reported as such.
//
// If several groups are stuck, the search begins with the one named `group`.
Explanation explain(std::span<const Flight> flights, std::string_view group = {});

// Describes one rank's record as a line of a table: "rank 3 (box, pid 711, stopped): last finished
// broadcast #41 (float32 x 1000, root 0)".
std::string describe_rank(const Flight& flight);

}  // namespace paceline
