#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/bench/report.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::Not;

CallRow row_of(const std::string& peer, const CallFigure& figure, std::vector<double> rounds,
               std::vector<double> ratios = {}) {
  return {.peer = peer,
          .way = CallTransport::kTcp,
          .measure = CallMeasure::kBlocking,
          .bytes = 64,
          .figure = figure,
          .rounds = std::move(rounds),
          .ratios = std::move(ratios)};
}

CallReport small_report() {
  CallReport report;
  report.date = "2026-01-01T00:00:00Z";
  report.machine = {"a cpu", 2, 24, "Linux"};
  report.participants = {{"paceline", "Paceline", "Paceline, over TCP"}};
  report.missing = {"gRPC is not here"};
  report.busy = true;
  report.rows = {row_of("paceline", {"p50", "µs"}, {12, 10, 11}),
                 row_of("socket", {"p50", "µs"}, {8, 8, 10}, {1.5, 1.25, 1.1}),
                 row_of("paceline", {"p99", "µs"}, {120, 100, 110}),
                 row_of("socket", {"p99", "µs"}, {80, 81, 200}, {1.5, 1.23, 0.55})};
  return report;
}

TEST(CallReportTest, the_table_has_medians_spreads_and_ratios) {
  const std::string text = table_of(small_report().rows, true);
  EXPECT_THAT(text, Says("bench.heading_of_busy_calls", "blocking", "TCP", "64 B", "3 rounds"));
  EXPECT_THAT(text, Says("bench.columns_of_calls"));
  EXPECT_THAT(text, HasSubstr("11.0 [10.0, 12.0]"));
  EXPECT_THAT(text, HasSubstr("8.00 [8.00, 10.0]"));
  EXPECT_THAT(text, HasSubstr("1.25 [1.10, 1.50]\n"));
  EXPECT_THAT(text, HasSubstr("81.0 [80.0, 200]"));
  EXPECT_THAT(text, HasSubstr("1.23 [0.55, 1.50] noisy\n"));
  EXPECT_THAT(table_of(small_report().rows, false), Not(Says("bench.heading_of_busy_calls")));
  EXPECT_EQ(table_of({}, false), "");
}

TEST(CallReportTest, rounds_more_than_twice_apart_are_noisy) {
  const std::vector<CallRow> rows = small_report().rows;
  EXPECT_FALSE(rows[0].is_noisy());
  EXPECT_TRUE(rows[3].is_noisy());
  EXPECT_THAT(noise_note(rows), Says("bench.noisy"));
  EXPECT_EQ(noise_note({rows[0], rows[1]}), "");
}

TEST(CallReportTest, json_has_a_row_for_every_figure_and_contestant) {
  const auto json = nlohmann::json::parse(to_json(small_report()));
  EXPECT_EQ(json["busy"], true);
  EXPECT_EQ(json["missing"][0], "gRPC is not here");
  EXPECT_EQ(json["peers"][0]["version"], "Paceline, over TCP");
  ASSERT_EQ(json["rows"].size(), 4u);
  const auto& socket = json["rows"][1];
  EXPECT_EQ(socket["peer"], "socket");
  EXPECT_EQ(socket["way"], "tcp");
  EXPECT_EQ(socket["measure"], "blocking");
  EXPECT_EQ(socket["bytes"], 64);
  EXPECT_EQ(socket["figure"], "p50");
  EXPECT_EQ(socket["unit"], "µs");
  EXPECT_EQ(socket["median"], 8);
  EXPECT_EQ(socket["max"], 10);
  EXPECT_EQ(socket["rounds"], (std::vector<double>{8, 8, 10}));
  EXPECT_EQ(socket["paceline_to_it"], (std::vector<double>{1.5, 1.25, 1.1}));
  EXPECT_FALSE(json["rows"][0].contains("paceline_to_it"));
}

}  // namespace
}  // namespace paceline::bench
