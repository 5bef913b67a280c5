#include "paceline/collectives/calibration.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

TEST(Calibration, is_read_as_it_was_written) {
  const FreshDirectory directory;
  const auto path = std::filesystem::path(directory.file("deep/costs.json"));
  EXPECT_FALSE(load_calibration(path));
  CostModel costs;
  costs.network.latency_s = 1.25e-5;
  costs.reduce_bytes_per_s = 3e9;
  costs.origin = "box of 2026-01-02";
  save_calibration(costs, path);
  EXPECT_EQ(load_calibration(path), costs);
}

TEST(Calibration, refuses_what_it_did_not_write) {
  const FreshDirectory directory;
  const auto path = std::filesystem::path(directory.file("costs.json"));
  CostModel negative;
  negative.meet_s = -1;
  save_calibration(negative, path);
  EXPECT_THROW(load_calibration(path), Error);
  for (const char* text :
       {"", "{}", "[1, 2]", "{\"format\": \"paceline costs\", \"version\": 2}"}) {
    std::ofstream(path) << text;
    try {
      load_calibration(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
  }
}

TEST(Calibration, measures_plausible_numbers_alike_on_all_ranks) {
  for (const bool apart : {false, true}) {
    std::vector<CostModel> measured(2);
    run_ranks_ok(2,
                 [&](ProcessGroup& group) {
                   measured[static_cast<std::size_t>(group.rank())] = measure_costs(group);
                 },
                 {.adjust = [&](int rank, GroupOptions& options) {
                   if (apart) options.host = std::to_string(rank);
                 }});
    EXPECT_EQ(measured[0], measured[1]);
    const LinkCost& link = apart ? measured[0].network : measured[0].sockets;
    for (const double seconds : {link.latency_s, link.message_s, measured[0].meet_s}) {
      EXPECT_GT(seconds, 1e-9);
      EXPECT_LT(seconds, 1);
    }
    for (const double rate :
         {link.bytes_per_s, measured[0].reduce_bytes_per_s, measured[0].copy_bytes_per_s}) {
      EXPECT_GT(rate, 1e6);
      EXPECT_LT(rate, 1e13);
    }
  }
}

TEST(Calibration, of_rank_0_counts_for_all) {
  run_ranks_ok(2,
               [](ProcessGroup& group) {
                 const auto text = group.explain(Op::kAllReduce, Dtype::kFloat32, 1000);
                 EXPECT_NE(text.find("the moon"), std::string::npos) << text;
               },
               {.adjust = [](int rank, GroupOptions& options) {
                 options.host = std::to_string(rank);
                 options.costs = CostModel();
                 if (rank == 0) options.costs->origin = "the moon";
               }});
}

}  // namespace
}  // namespace paceline
