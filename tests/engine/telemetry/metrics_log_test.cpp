#include "paceline/engine/telemetry/metrics_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/phase_times.h"

namespace paceline {
namespace {

TEST(MetricsLog, appends_one_json_object_a_line) {
  const auto path = std::filesystem::path(testing::TempDir()) / "metrics_log_test.jsonl";
  std::filesystem::remove(path);
  for (int round = 0; round < 2; ++round) {
    MetricsLog log(path);
    log.write("step",
              {{"step", std::int64_t{round}}, {"loss", 0.25}, {"note", std::string("a \"b\"\n")}});
    const std::vector<MetricsLog::Field> fields{{"loss", std::nan("")}};
    log.write("bad", fields);
  }
  std::ifstream file(path);
  std::string line;
  std::vector<nlohmann::json> lines;
  while (std::getline(file, line)) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["step"], 1);
  EXPECT_EQ(lines[2]["loss"], 0.25);
  EXPECT_EQ(lines[2]["note"], "a \"b\"\n");
  EXPECT_TRUE(lines[3]["loss"].is_null());
  std::filesystem::remove(path);
}

TEST(MetricsLog, an_unwritable_path_is_named) {
  try {
    MetricsLog log("/nonexistent/folder/metrics.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/folder"), std::string::npos);
  }
}

TEST(MetricsLog, a_full_disk_costs_the_metrics_only) {
  MetricsLog log("/dev/full");
  EXPECT_NO_THROW(log.write("step", {{"step", std::int64_t{1}}}));
  EXPECT_NO_THROW(log.write("step", {{"step", std::int64_t{2}}}));
}

TEST(PhaseTimes, adds_up_per_phase) {
  PhaseTimes times;
  times.add(Phase::kData, 1.5);
  times.add(Phase::kData, 1.0);
  { const auto timed = times.measure(Phase::kForward); }
  EXPECT_EQ(times.seconds(Phase::kData), 2.5);
  EXPECT_GE(times.seconds(Phase::kForward), 0.0);
  EXPECT_EQ(times.seconds(Phase::kBackward), 0.0);
}

}  // namespace
}  // namespace paceline
