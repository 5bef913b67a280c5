#include "paceline/collectives/flight/explain.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "paceline/collectives/flight/idle_verdicts.h"
#include "paceline/collectives/flight/positions.h"
#include "paceline/collectives/flight/stand.h"
#include "paceline/collectives/flight/stand_verdicts.h"

namespace paceline {
namespace {

using flight::GroupPositions;
using flight::Position;
using flight::Stand;

std::int64_t first_entered(const Stand& stand) {
  std::int64_t first = stand.operation->entered_wall;
  for (const Position* position : stand.inside) {
    first = std::min(first, position->at(stand.sequence)->entered_wall);
  }
  return first;
}

// Another stand inside which somebody is who is missing here.
const Stand* stand_that_holds(const Stand& here, const std::vector<Stand>& stands) {
  for (const Position* missing : here.absent) {
    for (const Stand& other : stands) {
      for (const Position* inside : other.inside) {
        if (&other != &here && inside->flight == missing->flight) return &other;
      }
    }
  }
  return nullptr;
}

// The stand that explains the others: from the oldest on, after whoever is missing there.
std::optional<Explanation> where_it_stands(std::span<const GroupPositions> groups) {
  std::vector<Stand> stands;
  for (const auto& group : groups) {
    if (group.stands_at() > 0) stands.push_back(flight::stand_of(group));
  }
  if (stands.empty()) return {};
  for (const Stand& stand : stands) {
    if (auto found = flight::find_mismatch(stand)) return found;
  }
  std::sort(stands.begin(), stands.end(),
            [](const Stand& a, const Stand& b) { return first_entered(a) < first_entered(b); });
  std::vector<const Stand*> way{&stands.front()};
  for (;;) {
    const Stand* next = stand_that_holds(*way.back(), stands);
    if (next == nullptr) return flight::explain_stand(*way.back(), groups);
    if (std::find(way.begin(), way.end(), next) != way.end()) {
      return flight::explain_crossing(*next, *way.back());
    }
    way.push_back(next);
  }
}

}  // namespace

Explanation explain(std::span<const Flight> flights) {
  const auto groups = flight::find_positions(flights);
  if (auto found = where_it_stands(groups)) return *found;
  if (auto found = flight::find_lonely_message(flights, groups)) return *found;
  if (auto found = flight::find_silent_ends(flights, groups)) return *found;
  if (auto found = flight::find_own_words(flights)) return *found;
  return flight::explain_rest(groups);
}

}  // namespace paceline
