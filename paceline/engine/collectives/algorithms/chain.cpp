#include "paceline/engine/collectives/algorithms/chain.h"

#include "paceline/engine/collectives/algorithms/schedule_builder.h"

namespace paceline {

Schedule build_chain(const ScheduleSpec& spec) {
  ScheduleBuilder builder(spec);
  const int world = spec.world_size;
  const bool is_root = spec.rank == spec.root;
  const int next = (spec.rank + 1) % world;
  const int previous = (spec.rank - 1 + world) % world;
  const auto source_of = [&](int rank) { return rank == spec.root ? input(0) : output(0); };
  const auto for_each_chunk = [&](auto body) {
    for (std::size_t begin = 0; begin < spec.count; begin += spec.chunk) {
      body(begin, std::min(spec.chunk, spec.count - begin));
    }
  };
  if (is_root) {
    builder.copy(input(0), output(0), spec.count);
  } else {
    for_each_chunk([&](std::size_t begin, std::size_t count) {
      builder.receive(previous, source_of(previous) + begin, output(begin), count);
    });
  }
  if (next == spec.root) return builder.take();
  for_each_chunk([&](std::size_t begin, std::size_t count) {
    builder.send(next, source_of(spec.rank) + begin, output(begin), count);
  });
  return builder.take();
}

}  // namespace paceline
