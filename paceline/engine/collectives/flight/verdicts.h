#pragma once

// Verdicts on the records of ranks: which rank keeps the others waiting, why an operation did not
// end, and what to report if no operation is under way.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

// The rank for which the others wait longest, judged by all operations that every rank still has in
// its records.
struct Straggler {
  int rank = 0;
  std::size_t times_last = 0;
  std::size_t num_operations = 0;
  double waited_seconds = 0;  // how long the second-to-last rank to arrive waited, in total
  double span_seconds = 0;    // time from the first operation to the last
};

// Finds a rank that causes more than half of all waiting, if that is more than a tenth of
// span_seconds; empty if there is no such rank, or if there are fewer than 20 operations. Clocks:
// the monotonic one when all ranks are on one machine, otherwise the wall clock, whose error
// between machines counts in full.
std::optional<Straggler> find_straggler(const GroupPositions& group);

// A stuck group, seen from its oldest unfinished collective: which ranks are inside it, which have
// passed it, and which never arrived. Points into the group's positions.
struct StuckGroup {
  const GroupPositions* group = nullptr;
  std::uint32_t sequence = 0;
  const FlightOperation* operation = nullptr;  // one of the ranks' records of the operation
  std::vector<const Position*> inside;         // ranks that have entered it, but not finished it
  std::vector<const Position*> passed;         // ranks that have finished it
  std::vector<const Position*> absent;         // ranks that never entered it
  std::vector<int> silent;                     // ranks that ended silently, wherever they were
  int without_records = 0;
};
// Requires: the group has an unfinished collective.
StuckGroup stuck_group_of(const GroupPositions& group);

// The longest wait inside the collective, and its text: "ranks 0-2 have been waiting for 31.2 s".
struct Wait {
  double seconds = 0;
  std::string text;
};
Wait wait_of(const StuckGroup& stuck);

std::vector<int> ranks_of(const std::vector<const Position*>& positions);

// Whether a rank inside the collective timed out. A rank that ended silently is then not the cause,
// because a launcher ended it afterwards.
bool has_timed_out(const StuckGroup& stuck);
// Whether some ranks of the group ended silently, and others did not.
bool some_are_silent(const StuckGroup& stuck);

// Explanations of why a collective did not end: which rank of the group made a different call,
// died, did not arrive, stopped, or failed.

// Explains a group whose members made different calls.
std::optional<Explanation> find_mismatch(const StuckGroup& stuck);

// Explains groups that wait for each other in a circle: a rank that is missing in one group is
// inside the next, and a rank that is missing in the last is inside the first.
Explanation explain_crossing(std::span<const StuckGroup* const> circle);

// Explains a stuck group whose missing ranks are not inside another stuck group. `groups` are all
// groups, which show what its members do elsewhere.
Explanation explain_stuck_group(const StuckGroup& stuck, std::span<const GroupPositions> groups);

// Explanations for a job without a collective under way, in the order in which they are tried.

// Explains the oldest send or receive that has not completed.
std::optional<Explanation> find_unmatched_message(std::span<const Flight> flights,
                                                  std::span<const GroupPositions> groups,
                                                  Failures failures);

// Explains ranks that ended silently, outside of any operation.
std::optional<Explanation> find_silent_ends(std::span<const Flight> flights,
                                            std::span<const GroupPositions> groups);

// Explains a job by a rank's own error; prefers a rank whose process exited with an error code.
std::optional<Explanation> find_own_error(std::span<const Flight> flights);

// Explains a job in which no rank waits: the operation that the ranks finished last, and which rank
// kept the others waiting.
Explanation explain_rest(std::span<const GroupPositions> groups);

}  // namespace paceline::flight
