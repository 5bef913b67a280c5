#pragma once

// Where ranks stand in their groups: what explain() reasons about. Values that point into the
// flights that they were made of.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"

namespace paceline::flight {

// One rank in one group.
struct Position {
  const Flight* flight = nullptr;
  int group_rank = 0;
  const FlightOperation* last = nullptr;  // the last collective that it finished
  const FlightOperation* open = nullptr;  // the first after `last` that it began and did not finish
  // Its collective with this number; null when it has none, or the ring has forgotten it.
  const FlightOperation* at(std::uint32_t sequence) const;
  bool has_passed(std::uint32_t sequence) const {
    return last != nullptr && last->sequence >= sequence;
  }
  // Called after the group had failed here, so this rank did not enter it.
  bool was_refused(const FlightOperation& operation) const;
  std::uint32_t number = 0;     // the group's, on this rank
  std::uint64_t failed_at = 0;  // when the group failed on this rank; 0: it has not
};

struct GroupPositions {
  std::uint64_t hash = 0;
  std::string name;
  int world_size = 0;
  std::vector<Position> ranks;  // those with records, by rank in the world
  // The lowest number that some rank did not finish; 0: none.
  std::uint32_t stands_at() const;
};

bool is_message(const FlightOperation& operation);
// Which failures count: those after which the rank went on in no group, or all.
enum class Failures : std::uint8_t { kPresent, kAll };
// A group that was made again under its name on a rank counts as the newest one only.
std::vector<GroupPositions> find_positions(std::span<const Flight> flights,
                                           Failures failures = Failures::kPresent);
// The rank went on afterwards: it finished something that it called later, or is in it.
bool is_left_behind(const Flight& flight, const FlightOperation& failed);
// What the rank said when the operation failed; of a second failure only its kind is known.
std::string words_of(const Flight& flight, const FlightOperation& failed);
// What it said when it failed for good; empty when it went on, or has not failed.
std::string last_words(const Flight& flight);
// The group that has this number on that rank; null when none has.
const GroupPositions* find_group(std::span<const GroupPositions> groups, const Flight& flight,
                                 std::uint32_t number);

// Seconds in which the rank waited in `operation`; empty when it is not known when that ended.
std::optional<double> waited(const Flight& flight, const FlightOperation& operation);

// Its process is known to live, running or stopped.
bool is_running(const Flight& flight);

// Ended without a word: killed, crashed, or left through exit().
bool ended_silently(const Flight& flight);

// How operations and ranks are named in an explanation.

// "all_reduce #42".
std::string short_text(const FlightOperation& operation);
// "all_reduce #42 (float32 x 1000, sum, group world)"; without the group when its name is empty.
// `group` says which ranks of the world a root and the other side of a message are; may be null.
std::string full_text(const FlightOperation& operation, const GroupPositions* group);
// The same for an operation of `flight`, in whichever of `groups` it is.
std::string full_text(const FlightOperation& operation, const Flight& flight,
                      std::span<const GroupPositions> groups);
// Two ranks agree on an operation exactly when their texts are equal. `group` as above.
std::string agreed_text(const FlightOperation& operation, const GroupPositions* group);
// "3.1 s", "0.002 s".
std::string seconds_text(double seconds);

// Where a rank is that does not arrive where the others wait for it.

// What it waits in, or failed in, beside the collectives of the position's group; null: nothing.
const FlightOperation* unfinished_elsewhere(const Position& position);

// "it last finished all_reduce #41".
std::string last_finished(const std::string& who, const Position& position);

// " and has been in recv (...) for 2.0 s"; empty when there is nothing to tell.
std::string whereabouts(const Position& position, std::span<const GroupPositions> groups);

}  // namespace paceline::flight
