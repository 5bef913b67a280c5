#include "paceline/engine/collectives/algorithms/bruck.h"

#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

// Scratch: first the blocks in order of the distance that they have to go, then for each round what
// is packed for sending and what arrives.
Schedule build_bruck(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const int world = spec.world_size;
  const auto at = [&](int distance) { return ((spec.rank + distance) % world + world) % world; };
  const auto block = [&](int distance) {
    return scratch(static_cast<std::size_t>(distance) * spec.count);
  };
  for (int distance = 0; distance < world; ++distance) {
    builder.copy(input(spec.given(spec.rank, at(distance)).offset), block(distance), spec.count);
  }
  std::size_t free = static_cast<std::size_t>(world) * spec.count;
  for (int digit = 1; digit < world; digit *= 2) {
    std::vector<int> moving;
    for (int distance = digit; distance < world; ++distance) {
      if ((distance & digit) != 0) moving.push_back(distance);
    }
    const std::size_t count = moving.size() * spec.count;
    const Place packed = scratch(free);
    const Place arrived = scratch(free + count);
    free += 2 * count;
    for (std::size_t i = 0; i < moving.size(); ++i) {
      builder.copy(block(moving[i]), packed + i * spec.count, spec.count);
    }
    builder.send(at(digit), packed, arrived, count);
    builder.receive(at(-digit), packed, arrived, count);
    for (std::size_t i = 0; i < moving.size(); ++i) {
      builder.copy(arrived + i * spec.count, block(moving[i]), spec.count);
    }
  }
  for (int distance = 0; distance < world; ++distance) {
    const int from = at(-distance);
    builder.copy(block(distance), output(spec.placed(from, spec.rank).offset), spec.count);
  }
  return builder.take();
}

}  // namespace paceline
