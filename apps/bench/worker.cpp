#include "apps/bench/worker.h"

#include "apps/bench/measurement.h"
#include "apps/bench/rank_end.h"
#include "apps/bench/start_line.h"

namespace paceline::bench {

int run_worker(int argc, char** argv, const Connect& connect) {
  return run_rank(argc, argv, [&](RankEnd& end, const Setup& setup) {
    const int rank = end.who().rank, world_size = end.who().world_size;
    const auto contestant = connect({rank, world_size, setup.cpus, setup.option});
    StartLine start_line(setup.start_line, rank, world_size, setup.own_core);
    Measurement measurement(*contestant, start_line, rank, world_size);
    end.serve<Turn>(
        {contestant->version(), contestant->has_symmetric_memory(), contestant->gives_results()},
        [&](const Turn& turn) { return measurement.run(turn); });
  });
}

}  // namespace paceline::bench
