#include "paceline/planning/forecast/job_profile.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

using harness::Says;

std::string refusal_of(const std::string& text) {
  try {
    profile_from_text(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    return error.what();
  }
  return "";
}

JobProfile unusual_job() {
  JobProfile profile = divisible_job(3, 12);
  profile.layers.back().tied_parameters = 7;
  profile.layers.front().forward.fixed_s = 0.25;
  profile.layers[1].input_half = {.fixed_s = 0.5, .sample_s = 1};
  profile.layers[1].weight_half = {.fixed_s = 0.75, .sample_s = 2};
  profile.layers[1].add_s = 0.125;
  profile.layers[1].deferred_bytes = 150;
  profile.unit = "tokens";
  profile.units_per_sample = 128;
  profile.samples_per_step = 32;
  profile.threads = 2;
  profile.ranks_at_once = 4;
  profile.optimizer_s_per_parameter = 1e-9;
  profile.working_bytes = 5;
  profile.shard_stages = {0, 1, 2, 3};
  profile.schedules = {"1f1b", "zero-bubble", "search"};
  return profile;
}

TEST(JobProfile, comes_back_from_its_text) {
  EXPECT_EQ(profile_from_text(to_text(unusual_job())), unusual_job());
}

TEST(JobProfile, needs_only_what_has_no_default) {
  const JobProfile profile = profile_from_text(
      R"({"format":"paceline profile","version":2,"samples_per_step":8,"layers":[{"name":"all",
          "parameters":10,"forward":{"fixed_s":0,"sample_s":1},"backward":{"fixed_s":0,"sample_s":2},
          "activation_bytes":3}]})");
  EXPECT_EQ(profile.samples_per_step, 8);
  EXPECT_EQ(profile.parameters(), 10);
  EXPECT_EQ(profile.num_blocks(), 0);
  EXPECT_EQ(profile.layers[0].deferred(), 3);
  EXPECT_EQ(profile.shard_stages, std::vector<int>{0});
}

TEST(JobProfile, counts_tied_parameters_once) { EXPECT_EQ(unusual_job().parameters(), 3000 - 7); }

TEST(JobProfile, damaged_texts_are_refused_with_what_is_wrong) {
  EXPECT_THAT(refusal_of("{"), Says("mesh.foreign_profile"));
  EXPECT_THAT(refusal_of(R"({"format":"paceline costs","version":1})"), Says("profile.other_file"));
  JobProfile profile = unusual_job();
  profile.layers[1].forward.sample_s = -1;
  EXPECT_THAT(refusal_of(to_text(profile)),
              Says("profile.amount_refused", "layer 'block 1'", "sample_s", -1));
  profile = unusual_job();
  profile.schedules = {"2f2b"};
  EXPECT_THAT(refusal_of(to_text(profile)), Says("profile.unknown_schedule", "2f2b"));
  profile.schedules = {"search"};
  EXPECT_THAT(refusal_of(to_text(profile)), Says("profile.one_schedule", "search"));
  profile = unusual_job();
  profile.layers[1].weight_half->fixed_s = -2;
  EXPECT_THAT(refusal_of(to_text(profile)),
              Says("profile.amount_refused", "layer 'block 1'", "fixed_s", -2));
  profile = unusual_job();
  profile.layers[0].divisible.time = 1.5;
  EXPECT_THAT(refusal_of(to_text(profile)),
              Says("profile.share_refused", "layer 'block 0'", "divisible_time", 1.5));
  profile = unusual_job();
  profile.layers.clear();
  EXPECT_THAT(refusal_of(to_text(profile)), Says("profile.no_layers", "profile"));
}

TEST(JobProfile, is_kept_in_a_file) {
  const FreshDirectory directory;
  const std::string path = directory.file("job.json");
  save_profile(unusual_job(), path);
  EXPECT_EQ(load_profile(path), unusual_job());
  std::ofstream(path) << "nonsense";
  try {
    load_profile(path);
    FAIL() << "nonsense was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), Says("profile.unreadable_file", path));
  }
  EXPECT_THROW(load_profile(directory.file("none.json")), Error);
  EXPECT_THROW(save_profile(unusual_job(), "/nonexistent/job.json"), Error);
}

TEST(PassCost, goes_through_two_measurements) {
  const PassCost cost = line_through(2, 5, 6, 9);
  EXPECT_DOUBLE_EQ(cost.sample_s, 1);
  EXPECT_DOUBLE_EQ(cost.fixed_s, 3);
  EXPECT_DOUBLE_EQ(cost.of(10), 13);
}

TEST(PassCost, has_no_negative_part) {
  EXPECT_EQ(line_through(1, 1, 4, 8), (PassCost{.fixed_s = 0, .sample_s = 2}));
  EXPECT_EQ(line_through(1, 5, 4, 4), (PassCost{.fixed_s = 4, .sample_s = 0}));
}

}  // namespace
}  // namespace paceline::planning
