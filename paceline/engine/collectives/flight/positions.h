#pragma once

// The positions of ranks in their groups, on which explain() is based. These values point into the
// Flight objects (decoded records) from which they were made.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline::flight {

// The position of one rank in one group.
struct Position {
  const Flight* flight = nullptr;
  int group_rank = 0;
  const FlightOperation* last = nullptr;  // the last collective that the rank finished
  const FlightOperation* open = nullptr;  // the rank's first unfinished collective after `last`
  // The rank's collective with this number; null if not entered, or if the record was overwritten.
  const FlightOperation* at(std::uint32_t sequence) const;
  bool has_passed(std::uint32_t sequence) const {
    return last != nullptr && last->sequence >= sequence;
  }
  // True if the operation failed and began after the group had failed on this rank, so this rank
  // did not enter it.
  bool was_refused(const FlightOperation& operation) const;
  std::uint32_t number = 0;     // the group's number on this rank
  std::uint64_t failed_at = 0;  // when the group failed on this rank; 0 if it has not
};

struct GroupPositions {
  std::uint64_t hash = 0;
  std::string name;
  int world_size = 0;
  std::vector<Position> ranks;  // the positions of ranks with records, by rank in the world
  // The lowest number of an operation that some rank did not finish; 0 if there is none.
  std::uint32_t stuck_at() const;
};

bool is_message(const FlightOperation& operation);
// kFinal: only failures after which the rank did not continue in any group. kAll: all failures.
enum class Failures : std::uint8_t { kFinal, kAll };
// If a rank has created a group again under the same name, only the newest group counts.
std::vector<GroupPositions> find_positions(std::span<const Flight> flights,
                                           Failures failures = Failures::kFinal);
// Whether the rank continued after the failure: it has finished, or is inside, an operation that it
// called later.
bool has_continued_after(const Flight& flight, const FlightOperation& failed);
// The text of the rank's error when the operation failed; for a second failure only its kind.
std::string words_of(const Flight& flight, const FlightOperation& failed);
// The rank's final error; empty if the rank continued, or has not failed.
std::string last_words(const Flight& flight);
// The group that has this number on the rank of `flight`; null if there is none.
const GroupPositions* find_group(std::span<const GroupPositions> groups, const Flight& flight,
                                 std::uint32_t number);

// How long the rank waited in `operation`, in seconds, or has been waiting if the operation has not
// ended; in that case, empty if the process no longer exists or its machine's clock is not known.
std::optional<double> waited(const Flight& flight, const FlightOperation& operation);

// Whether the rank's process is known to exist, running or stopped.
bool is_running(const Flight& flight);

// Whether the rank ended silently: it was killed, crashed, or called exit().
bool ended_silently(const Flight& flight);

// Names of operations and ranks in explanations.

// "all_reduce #42".
std::string short_text(const FlightOperation& operation);
// "all_reduce #42 (float32 x 1000, sum, group world)"; without the group when its name is empty.
// `group` maps the root and the other end of a message to ranks of the world; may be null.
std::string full_text(const FlightOperation& operation, const GroupPositions* group);
// As above, for an operation of `flight` that is in one of `groups`.
std::string full_text(const FlightOperation& operation, const Flight& flight,
                      std::span<const GroupPositions> groups);
// Ranks agree on an operation if and only if these texts are equal. `group` as above.
std::string agreed_text(const FlightOperation& operation, const GroupPositions* group);
// "3.1 s", "0.002 s".
std::string seconds_text(double seconds);

// Texts about a rank that has not arrived where the others wait for it.

// The message, or the collective of another group, in which the rank waits or failed; or null.
const FlightOperation* unfinished_elsewhere(const Position& position);

// "it last finished all_reduce #41".
std::string last_finished(const std::string& who, const Position& position);

// " and has been in recv (...) for 2.0 s"; empty if nothing is known.
std::string whereabouts(const Position& position, std::span<const GroupPositions> groups);

}  // namespace paceline::flight
