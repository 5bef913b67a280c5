// Paceline itself, measured like all other contestants.

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/selection/algorithm.h"

#include "apps/bench/contestant/contestant.h"
#include "apps/bench/contestant/own_contestant.h"

int main(int argc, char** argv) {
  using namespace paceline;
  return bench::run_worker(argc, argv, [](const bench::WorkerPlace& place) {
    InitOptions options;
    options.group.planning.algorithm = algorithm_named(place.algorithm);
    const std::string how = place.algorithm.empty() ? "" : ", algorithm " + place.algorithm;
    return std::make_unique<bench::OwnContestant>(init_process_group(options), how);
  });
}
