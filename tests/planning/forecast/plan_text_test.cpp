#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/planning/forecast/best_ways.h"

#include "tests/harness/says.h"
#include "tests/planning/forecast/small_job.h"

namespace paceline::planning {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

TEST(PlanText, ways_with_the_best_one_marked) {
  const JobProfile profile = divisible_job(4, 2);
  const Search search = search_ways(profile, ideal_machine(1, 2), 8);
  const std::string table = way_table(search, profile, 2);
  EXPECT_THAT(table, AllOf(HasSubstr("pp=1,dp=2,tp=1"), HasSubstr("48.0 ms"),
                           HasSubstr("samples/s"), Says("plan.best_way")));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

TEST(PlanText, memory_says_what_fits) {
  JobProfile profile = job_of_blocks(1000);  // 16 MB per replica
  profile.shard_stages = {0, 1};
  Machine machine = ideal_machine(1, 2);
  machine.memory_bytes = 27e6;
  Forecaster forecaster(profile, machine, 2);
  const std::vector<Forecast> ways = {forecaster.forecast({.replicas = 2}),
                                      forecaster.forecast({.replicas = 2, .shard_stage = 1})};
  const std::string table = memory_table(ways, machine);
  EXPECT_THAT(table,
              AllOf(Says("plan.memory_too_large", "32 MB"), Says("plan.memory_fits", "24 MB"),
                    Says("plan.memory_of_host", "27 MB")));
}

TEST(PlanText, errors_of_the_prediction) {
  const JobProfile profile = job_of_blocks(1000);
  Forecaster forecaster(profile, ideal_machine(1, 1), 1);  // a step takes 3 s and 16 MB
  const Forecast forecast = forecaster.forecast({});
  const double bytes = forecast.memory.host;
  const std::vector<MeasuredWay> ways = {{forecast, 3.0, bytes, ""},
                                         {forecast, 2.4, bytes, ""},
                                         {forecast, 3.2, bytes / 2, ""},
                                         {forecast, 0, 0, "failed with exit code 3"}};
  EXPECT_THAT(measured_table(ways),
              AllOf(HasSubstr("+25.0%"), HasSubstr("failed with exit code 3"),
                    Says("plan.error_of_prediction", "step", "6.2", "25.0"),
                    Says("plan.error_of_prediction", "memory", "0.0", "100.0")));
}

}  // namespace
}  // namespace paceline::planning
