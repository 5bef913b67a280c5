#include "tests/harness/thread_ranks.h"

#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/watchdog.h"

namespace paceline::harness {

std::vector<RankResult> run_ranks(int world_size, const RankBody& body,
                                  const RanksOptions& options) {
  const Watchdog watchdog(options.watchdog, "ranks as threads");
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<RankResult> results(ranks.size());
  std::vector<std::jthread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank] {
      try {
        LaunchEnvironment environment;
        environment.rank = environment.local_rank = rank;
        environment.world_size = environment.local_world_size = world_size;
        EngineGroup group({environment, store, secret}, "world", ranks,
                          group_options_of(options, rank, world_size));
        body(group);
      } catch (const Error& error) {
        results[static_cast<std::size_t>(rank)].error = error;
      }
    });
  }
  threads.clear();
  return results;
}

void run_ranks_ok(int world_size, const RankBody& body, const RanksOptions& options) {
  const auto results = run_ranks(world_size, body, options);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_FALSE(results[rank].error) << "rank " << rank << ": " << results[rank].error->what();
  }
}

}  // namespace paceline::harness
