#include "apps/bench/report.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using harness::Says;
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
  EXPECT_THAT(text,
              Says("bench.heading", "all_reduce", "float32", "in place", "4 ranks", "3 rounds"));
  EXPECT_THAT(text, HasSubstr("paceline, symmetric"));
  EXPECT_THAT(text, HasSubstr("200.00 [100.00, 300.00]"));
}

// A row with one round for each pair: the median and the fastest call of the round.
Row timed_row(const std::string& peer, std::vector<std::pair<double, double>> rounds) {
  Row row = row_of(peer, 4096, {});
  for (const auto& [median, fastest] : rounds)
    row.rounds.push_back({median, median, median, fastest, median, 10});
  return row;
}

TEST(ReportTest, a_ratio_of_noisy_measurements_says_so) {
  struct Case {
    const char* what;
    std::vector<std::pair<double, double>> own, other;
    std::vector<double> ratios;
    bool is_noisy;
  };
  const std::vector<Case> cases = {
      {"quiet", {{10, 9}, {11, 9}}, {{20, 18}, {22, 18}}, {2, 2}, false},
      {"rounds up to 2 times apart", {{10, 9}, {20, 9}}, {{20, 18}, {40, 18}}, {2, 2}, false},
      {"paceline's rounds differ", {{1, 1}, {40, 30}}, {{80, 70}, {80, 70}}, {80, 2}, true},
      {"the other's rounds differ", {{1, 1}, {1, 1}}, {{3, 2}, {3996, 2000}}, {3, 3996}, true},
      {"only the ratios differ", {{10, 9}, {15, 9}}, {{30, 20}, {16, 15}}, {3, 1.07}, true},
      {"calls above the fastest", {{10, 9}, {10, 9}}, {{3996, 4}, {3996, 4}}, {400, 400}, true},
      {"paceline's calls above the fastest",
       {{60, 9}, {60, 9}},
       {{70, 60}, {70, 60}},
       {1, 1},
       true},
  };
  for (const Case& one : cases) {
    Report report = small_report();
    report.rows = {timed_row("paceline", one.own), timed_row("gloo", one.other)};
    report.rows[1].ratios = one.ratios;
    const std::string text = table_rows(report.rows), page = to_html(report);
    EXPECT_EQ(text.ends_with("] noisy\n"), one.is_noisy) << one.what << ": " << text;
    EXPECT_EQ(page.find("] noisy</td>") != std::string::npos, one.is_noisy) << one.what;
    EXPECT_EQ(!noise_note(report.rows).empty(), one.is_noisy) << one.what;
  }
  // Rows are compared with Paceline's row of the same size, so only Paceline's row is noisy here.
  std::vector<Row> rows = {timed_row("paceline", {{1, 1}, {40, 30}}), timed_row("gloo", {{9, 8}})};
  rows[1].bytes = 8192;
  EXPECT_THAT(noise_note(rows), Says("bench.noisy"));
  rows.erase(rows.begin());
  EXPECT_EQ(noise_note(rows), "");
}

TEST(ReportTest, the_pages_table_has_units_and_scrolls_in_itself) {
  const std::string page = to_html(small_report());
  for (const char* head :
       {"<th>median<br>µs</th>", "<th>algbw<br>10⁹ bytes/s</th>", "<th>busbw<br>10⁹ bytes/s</th>"})
    EXPECT_THAT(page, HasSubstr(head));
  EXPECT_THAT(page, HasSubstr("<div class=\"wide\"><table>"));
  EXPECT_THAT(page, HasSubstr(".wide { overflow-x: auto; }"));
  EXPECT_THAT(page, HasSubstr("overflow-wrap: anywhere"));
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
  EXPECT_THAT(page, Says("bench.environment", report.variables));
}

// A single size gives no line in the chart, so every contestant needs a marker.
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
