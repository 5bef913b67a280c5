#include "tests/harness/ranks_options.h"

#include "paceline/engine/telemetry/flight_recorder.h"

#include "tests/harness/ucx_ranks.h"

namespace paceline::harness {

GroupOptions group_options_of(const RanksOptions& options, int rank, int world_size) {
  GroupOptions group;
  group.timeout = options.group_timeout;
  group.backend = options.backend;
  group.link.transport = options.transport;
  if (options.hosts == nullptr) group.link.host = own_host_over_ucx(options.transport, rank);
  group.link.encrypt = options.encrypt;
  group.link.tcp_streams = options.tcp_streams;
  if (!options.flight_directory.empty()) {
    group.recorder =
        std::make_shared<FlightRecorder>(FlightOptions{.directory = options.flight_directory,
                                                       .rank = rank,
                                                       .world_size = world_size,
                                                       .keep = true});
  }
  if (options.adjust) options.adjust(rank, group);
  return group;
}

}  // namespace paceline::harness
