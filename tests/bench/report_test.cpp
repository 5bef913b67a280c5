#include "paceline/bench/report.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace paceline::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

Row row_of(const std::string& peer, std::size_t bytes, std::vector<double> medians) {
  Row row;
  row.peer = peer;
  row.memory = peer == "paceline" ? MemoryKind::kSymmetric : MemoryKind::kOrdinary;
  row.ranks = 4;
  row.bytes = bytes;
  for (const double median : medians)
    row.rounds.push_back({median, 2 * median, 3 * median, median / 2, 4 * median, 10});
  return row;
}

Report small_report() {
  Report report;
  report.date = "2026-01-01T00:00:00Z";
  report.machine = {"a <cpu>", 2, 24, "Linux"};
  report.participants = {{"paceline", "Paceline", "shm"}, {"gloo", "Gloo", "Gloo 1"}};
  report.missing = {"MPICH is not here"};
  report.notes = {"somebody said \"no\""};
  report.rows = {row_of("paceline", 4096, {2, 1, 3}), row_of("gloo", 4096, {200, 300, 600})};
  report.rows[1].ratios = {100, 300, 200};
  return report;
}

TEST(ReportTest, a_row_is_the_median_of_its_rounds) {
  const Row row = row_of("gloo", 8000, {2, 1, 3});
  EXPECT_EQ(row.median_us(), 2);
  EXPECT_EQ(row.p95_us(), 4);
  EXPECT_EQ(row.p99_us(), 6);
  EXPECT_EQ(row.min_us(), 0.5);
  EXPECT_EQ(row.max_us(), 12);
  EXPECT_EQ(row.spread(), (Spread{2, 1, 3}));
  EXPECT_DOUBLE_EQ(row.algbw(), 4);  // 8000 bytes in 2 µs
  EXPECT_DOUBLE_EQ(row.busbw(), 6);  // 2 (4 - 1) / 4
}

TEST(ReportTest, memcpys_bandwidth_depends_on_no_operation) {
  const Row row = row_of("memcpy", 8000, {2});
  EXPECT_DOUBLE_EQ(row.busbw(), row.algbw());
}

TEST(ReportTest, json_has_a_row_for_every_contestant_and_size) {
  const auto json = nlohmann::json::parse(to_json(small_report()));
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& gloo = json["rows"][1];
  EXPECT_EQ(gloo["peer"], "gloo");
  EXPECT_EQ(gloo["operation"], "all_reduce");
  EXPECT_EQ(gloo["ranks"], 4);
  EXPECT_EQ(gloo["bytes"], 4096);
  EXPECT_EQ(gloo["median"], 300);
  EXPECT_EQ(gloo["p95"], 600);
  EXPECT_NEAR(gloo["algbw"].get<double>(), 0.01365, 1e-5);
  EXPECT_NEAR(gloo["busbw"].get<double>(), 0.02048, 1e-5);
  EXPECT_EQ(gloo["rounds"], 3);
  EXPECT_EQ(gloo["round_medians"], (std::vector<double>{200, 300, 600}));
  EXPECT_EQ(json["missing"][0], "MPICH is not here");
  EXPECT_EQ(json["peers"][1]["version"], "Gloo 1");
}

TEST(ReportTest, csv_has_as_many_fields_as_its_heading) {
  std::istringstream lines(to_csv(small_report()));
  std::string line;
  std::vector<std::ptrdiff_t> commas;
  while (std::getline(lines, line)) commas.push_back(std::count(line.begin(), line.end(), ','));
  EXPECT_THAT(commas, testing::SizeIs(3));
  EXPECT_THAT(commas, testing::Each(commas.front()));
}

TEST(ReportTest, the_table_shows_the_ratio_and_its_range) {
  const Report report = small_report();
  const std::string text = table_heading(report.rows.front()) + table_rows(report.rows);
  EXPECT_THAT(text, HasSubstr("all_reduce, float32, in place, freshly written, 4 ranks, 3 rounds"));
  EXPECT_THAT(text, HasSubstr("paceline, symmetric"));
  EXPECT_THAT(text, HasSubstr("200.00 [100.00, 300.00]"));
}

TEST(ReportTest, the_page_is_complete_in_itself) {
  const std::string page = to_html(small_report());
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("a &lt;cpu&gt;"));
  EXPECT_THAT(page, HasSubstr("somebody said &quot;no&quot;"));
  EXPECT_THAT(page, HasSubstr("MPICH is not here"));
  for (const char* other : {"http", "<script", "<link", "src=", "url(", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(other)));
}

TEST(ReportTest, the_page_says_how_it_was_made) {
  Report report = small_report();
  report.command = "paceline bench all_reduce --sizes '<4K'";
  report.version = "paceline 0.1";
  report.variables = "with PACELINE_ENCRYPT=1";
  const std::string page = to_html(report);
  EXPECT_THAT(page, HasSubstr("command: paceline bench all_reduce --sizes '&lt;4K'"));
  EXPECT_THAT(page, HasSubstr("Paceline: paceline 0.1"));
  EXPECT_THAT(page, HasSubstr("environment: with PACELINE_ENCRYPT=1"));
}

// One size makes no line, so that every contestant needs a marker.
TEST(ReportTest, every_contestant_is_seen_at_a_single_size) {
  Report report = small_report();
  for (const char* peer : {"gloo", "openmpi", "mpich", "oneccl", "limit", "memcpy"}) {
    report.rows = {row_of(peer, 4096, {2})};
    const std::string page = to_html(report);
    const bool has_marker =
        page.find("<polygon") != std::string::npos || page.find("<circle") != std::string::npos ||
        page.find("<path") != std::string::npos || page.find("width=\"8\"") != std::string::npos;
    EXPECT_TRUE(has_marker) << peer;
  }
}

TEST(ReportTest, a_barrier_has_times_but_no_curves) {
  Report report = small_report();
  for (Row& row : report.rows) {
    row.op = Op::kBarrier;
    row.bytes = 0;
  }
  const std::string page = to_html(report);
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  EXPECT_THAT(page, HasSubstr("300.00"));
  EXPECT_THAT(table_rows(report.rows), HasSubstr("-"));
}

}  // namespace
}  // namespace paceline::bench
