#pragma once

// A group that stands: its members, by what they did with the lowest operation that one of them did
// not finish, and how long they waited in it. Values that point into the group's positions.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

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

}  // namespace paceline::flight
