#pragma once

// Verdicts over the records of ranks: which rank keeps the others waiting, why an operation did not
// end, and what there is to say when none is under way.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

// The rank that comes last, and by how much, over all operations that every rank still has in its
// ring.
struct Straggler {
  int rank = 0;
  std::size_t times_last = 0;
  std::size_t num_operations = 0;
  double waited_seconds = 0;  // by the second to last, added up
  double span_seconds = 0;    // from the first operation to the last
};

// A rank that causes at least half of all waiting and a tenth of the time; empty when there is none
// or there are fewer than 20 operations to judge by. Clocks: the monotonic one when all ranks are
// on one machine, otherwise the wall clock, whose error between machines counts in full.
std::optional<Straggler> find_straggler(const GroupPositions& group);

// A stuck group, seen from its oldest unfinished collective: which ranks are inside it, which have
// passed it, which never came. Points into the group's positions.
struct Stand {
  const GroupPositions* group = nullptr;
  std::uint32_t sequence = 0;
  const FlightOperation* operation = nullptr;  // one of those that stand for it
  std::vector<const Position*> inside;         // not finished
  std::vector<const Position*> passed;         // finished
  std::vector<const Position*> absent;         // never entered
  std::vector<int> silent;                     // ended without a word, wherever they were
  int without_records = 0;
};
// Requires: the group stands somewhere.
Stand stand_of(const GroupPositions& group);

// The longest wait inside; and the words for it, ", ranks 0-2 have been waiting for 31.2 s".
struct Wait {
  double seconds = 0;
  std::string text;
};
Wait wait_of(const Stand& stand);

std::vector<int> ranks_of(const std::vector<const Position*>& positions);

// Why a collective did not end, told from the members of its group: which rank called something
// else, died, did not arrive, stopped, or failed.

// The group's members made different calls.
std::optional<Explanation> find_mismatch(const Stand& stand);

// Groups that wait for each other in a circle: a rank that is missing in one is inside the next,
// and one that is missing in the last is inside the first.
Explanation explain_crossing(std::span<const Stand* const> circle);

// A stuck group whose missing ranks are inside no other. `groups`: all, for what its members do
// elsewhere.
Explanation explain_stand(const Stand& stand, std::span<const GroupPositions> groups);

// What there is to tell when no collective is under way, in the order in which it is asked for.

// The oldest message without the other side.
std::optional<Explanation> find_lonely_message(std::span<const Flight> flights,
                                               std::span<const GroupPositions> groups,
                                               Failures failures);

// Ranks that ended without a word, outside of any operation.
std::optional<Explanation> find_silent_ends(std::span<const Flight> flights,
                                            std::span<const GroupPositions> groups);

// The error of the rank whose process has failed, when that is known.
std::optional<Explanation> find_own_words(std::span<const Flight> flights);

// No rank waits: what the ranks finished last, and which kept the others waiting.
Explanation explain_rest(std::span<const GroupPositions> groups);

}  // namespace paceline::flight
