#include "paceline/engine/collectives/flight/stand.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/words.h"

namespace paceline::flight {

Stand stand_of(const GroupPositions& group) {
  Stand stand{.group = &group, .sequence = group.stands_at()};
  for (const Position& position : group.ranks) {
    const FlightOperation* const entered = position.at(stand.sequence);
    if (ended_silently(*position.flight)) stand.silent.push_back(position.flight->rank);
    if (position.has_passed(stand.sequence)) {
      stand.passed.push_back(&position);
    } else if (entered != nullptr) {
      stand.inside.push_back(&position);
      if (stand.operation == nullptr) stand.operation = entered;
    } else {
      stand.absent.push_back(&position);
    }
  }
  stand.without_records = std::max(0, group.world_size - static_cast<int>(group.ranks.size()));
  return stand;
}

Wait wait_of(const Stand& stand) {
  Wait wait;
  bool still = false;
  bool known = false;
  for (const Position* position : stand.inside) {
    const FlightOperation& operation = *position->at(stand.sequence);
    still |= operation.ended == 0 && is_running(*position->flight);
    if (const auto seconds = waited(*position->flight, operation)) {
      known = true;
      wait.seconds = std::max(wait.seconds, *seconds);
    }
  }
  const std::string who = ranks_text(ranks_of(stand.inside));
  if (!known) {
    wait.text = fmt::format("{} waited for it until the end", who);
  } else if (still) {
    wait.text = fmt::format("{} {} been waiting for {}", who,
                            stand.inside.size() == 1 ? "has" : "have", seconds_text(wait.seconds));
  } else {
    wait.text = fmt::format("{} waited {}", who, seconds_text(wait.seconds));
  }
  return wait;
}

std::vector<int> ranks_of(const std::vector<const Position*>& positions) {
  std::vector<int> ranks;
  for (const Position* position : positions) ranks.push_back(position->flight->rank);
  return ranks;
}

}  // namespace paceline::flight
