#pragma once

// What explain() says: a verdict, and the sentence for people.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline {

enum class Verdict : std::uint8_t {
  kNothing,       // nothing was recorded
  kFinished,      // all ranks finished the same operations
  kStraggler,     // they did, but one kept the others waiting
  kMismatch,      // ranks called different operations
  kDied,          // a process ended, and its record does not say why
  kNeverEntered,  // a rank did not arrive at what others wait in
  kStuck,         // all arrived, and it did not end
  kCrossed,       // groups that wait for each other
  kMessage,       // a send or receive without the other side
  kFailed,        // something else failed; the rank's own words follow
  kUndecided,     // records that would decide it are missing
};
// "never_entered": for machines.
std::string_view name_of(Verdict verdict);

struct Explanation {
  Verdict verdict = Verdict::kNothing;
  std::string sentence;
  std::vector<int> ranks;      // that it is about; empty when that is not known
  std::string group;           // where the job stands; empty when nowhere
  std::uint32_t sequence = 0;  // likewise
  double waited_seconds = 0;   // the longest wait there, as far as it is known
};

// What the flight records of a job's ranks mean, in one sentence: which rank is missing, which
// died, which made another call. A pure function of decoded records; read_flights() gets them.
//
// How. Per group, each rank has a *position*: the last collective that it finished and the first
// that it did not. The lowest sequence number that some rank did not finish is where the group
// *stands*. Ranks that describe that number differently do not match; ranks without it never
// entered; if one of these stands in another group, the reason is looked for there, and two groups
// that wait for each other are reported as crossed.
//
// A group that has failed refuses every call, so what a rank called afterwards it did not enter;
// and a failure after which the rank went on counts only when the job is over and nothing else
// explains its end.
//
// What cannot be known is not guessed: a rank without a file, or on another machine, is called
// that.

// Where several groups stand, the one named `group` is looked at first.
Explanation explain(std::span<const Flight> flights, std::string_view group = {});

// One rank's record as a line of a table.

// "rank 3 (box, pid 711, stopped): last finished broadcast #41 of group world".
std::string describe_rank(const Flight& flight);

}  // namespace paceline
