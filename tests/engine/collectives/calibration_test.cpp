#include "paceline/engine/collectives/selection/calibration.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using harness::Says;

TEST(Calibration, is_read_as_it_was_written) {
  const FreshDirectory directory;
  const auto path = std::filesystem::path(directory.file("deep/costs.json"));
  EXPECT_FALSE(load_calibration(path));
  CostModel costs;
  costs.network.latency_s = 1.25e-5;
  costs.reduce_bytes_per_s = 3e9;
  costs.origin = "box of 2026-01-02";
  costs.spread = 0.125;
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

TEST(Calibration, refuses_anything_but_a_small_file_at_once) {
  const FreshDirectory directory;
  const auto pipe = directory.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto large = directory.file("large.json");
  std::ofstream(large).close();
  std::filesystem::resize_file(large, (1 << 20) + 1);
  const std::vector<std::string> names = {directory.file("."), pipe, "/dev/zero", large};
  for (const auto& name : names) {
    expect_error(ErrorCode::kCorrupt, {"the calibration " + name + " cannot be read: it "},
                 [&] { load_calibration(name); });
  }
  // As docs/network.md documents: a warning is printed, and the group forms.
  setenv("PACELINE_CALIBRATION", pipe.c_str(), 1);
  testing::internal::CaptureStderr();
  run_ranks_ok(2, [](ProcessGroup& group) { group.barrier(); });
  unsetenv("PACELINE_CALIBRATION");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Says("file.not_regular"));
}

TEST(Calibration, of_earlier_versions_is_read) {
  const FreshDirectory directory;
  const auto path = std::filesystem::path(directory.file("costs.json"));
  save_calibration(CostModel(), path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string without = text.str();
  const auto at = without.find("  \"spread\"");
  ASSERT_NE(at, std::string::npos);
  without.erase(at, without.find('\n', at) - at + 1);
  std::ofstream(path) << without;
  EXPECT_EQ(load_calibration(path), CostModel());
}

// Seven measurements with these rates of copying.
std::vector<CostModel> repetitions_with_copies(const std::vector<double>& rates) {
  std::vector<CostModel> all;
  for (const double rate : rates) {
    all.emplace_back();
    all.back().copy_bytes_per_s = rate;
  }
  return all;
}

TEST(Calibration, is_not_spoilt_by_a_disturbance_of_one_repetition) {
  const auto calm =
      agree_on_costs(repetitions_with_copies({9.9e9, 10e9, 10.1e9, 10e9, 9.9e9, 10.2e9, 10e9}));
  EXPECT_TRUE(calm.is_steady());
  EXPECT_DOUBLE_EQ(calm.costs.copy_bytes_per_s, 10e9);
  const auto disturbed =
      agree_on_costs(repetitions_with_copies({9.9e9, 10e9, 10.1e9, 1e9, 9.9e9, 10.2e9, 10e9}));
  EXPECT_TRUE(disturbed.is_steady()) << disturbed.costs.spread;
  EXPECT_DOUBLE_EQ(disturbed.costs.copy_bytes_per_s, 10e9);
  ASSERT_EQ(disturbed.spreads.size(), 1u);  // nothing else was measured
  EXPECT_EQ(disturbed.spreads[0].quantity, "copy");
}

TEST(Calibration, notices_repetitions_that_disagree) {
  const auto busy = agree_on_costs(repetitions_with_copies({10e9, 4e9, 9e9, 5e9, 10e9, 4e9, 10e9}));
  EXPECT_FALSE(busy.is_steady());
  EXPECT_NEAR(busy.costs.spread, 6.0 / 9, 1e-9);
  EXPECT_DOUBLE_EQ(busy.costs.network.latency_s, CostModel().network.latency_s);
  EXPECT_THROW(agree_on_costs(repetitions_with_copies({1, 2})), Error);
}

TEST(Calibration, that_is_noisy_does_not_replace_a_steady_one) {
  Calibration noisy, steady;
  noisy.costs.spread = 0.8;
  steady.costs.spread = 0.1;
  CostModel kept;
  kept.origin = "box of 2026-01-02";
  kept.spread = 0.05;
  EXPECT_EQ(why_not_replace({}, noisy), "");
  EXPECT_EQ(why_not_replace(kept, steady), "");
  const std::string reason = why_not_replace(kept, noisy);
  for (const char* word : {"80%", "busy", "box of 2026-01-02", "5%"}) {
    EXPECT_NE(reason.find(word), std::string::npos) << word << " in " << reason;
  }
  kept.spread = 0.5;
  EXPECT_EQ(why_not_replace(kept, noisy), "");
}

TEST(Calibration, measures_plausible_numbers_alike_on_all_ranks) {
  for (const bool apart : {false, true}) {
    std::vector<CostModel> measured(2);
    run_ranks_ok(2,
                 [&](ProcessGroup& group) {
                   measured[static_cast<std::size_t>(group.rank())] = measure_costs(group).costs;
                 },
                 {.adjust = [&](int rank, GroupOptions& options) {
                   if (apart) options.link.host = std::to_string(rank);
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
                 options.link.host = std::to_string(rank);
                 CostModel costs;
                 if (rank == 0) costs.origin = "the moon";
                 options.planning.costs = std::make_shared<const CostModel>(costs);
               }});
}

}  // namespace
}  // namespace paceline
