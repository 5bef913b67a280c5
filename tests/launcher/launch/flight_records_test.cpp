// Flight records of a real job: they are removed after success, and kept and explained after a
// failure.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// The operation that rank 1 never enters.
const char* const kOperation = "all_reduce #2 (float32 x 1000, sum, group world)";

std::vector<std::string> job(const std::string& how, std::vector<std::string> options = {}) {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", "3"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {RECORDED_PROGRAM, how});
  return arguments;
}

std::string records_named_in(const std::string& text) {
  const std::string before = "\n  flight records: ";
  const auto begin = text.find(before);
  if (begin == std::string::npos) return "";
  const auto end = text.find(" (paceline explain", begin);
  return text.substr(begin + before.size(), end - begin - before.size());
}

bool has_records(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".flight") return true;
  }
  return false;
}

TEST(FlightRecords, a_job_that_goes_well_leaves_none) {
  const FreshDirectory logs;
  PacelineProcess temporary(job("ends"));
  EXPECT_EQ(temporary.wait().exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(temporary.temporary()));
  const Outcome named = run_paceline(job("ends", {"--log-dir", logs.path()}));
  EXPECT_EQ(named.exit_code, 0);
  EXPECT_THAT(named.err, Not(Says("records.kept")));
  EXPECT_TRUE(std::filesystem::exists(logs.file("rank-000.log")));
  EXPECT_FALSE(has_records(logs.path()));
}

TEST(FlightRecords, a_missing_rank_is_named_by_the_error_the_launcher_and_explain) {
  PacelineProcess paceline(job("misses"));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 5);
  const auto sentence = Says("records.never_entered", "rank 1", kOperation, "broadcast #1");
  EXPECT_THAT(outcome.err, sentence);
  const std::string directory = records_named_in(outcome.err);
  ASSERT_NE(directory, "") << outcome.err;

  const Outcome explained = run_paceline({"explain", directory});
  EXPECT_EQ(explained.exit_code, 0);
  EXPECT_THAT(lines_of(explained.out).at(0), sentence);
  EXPECT_THAT(explained.out, HasSubstr("\n  rank 2 ("));
  const Outcome machine = run_paceline({"explain", directory, "--json"});
  const auto json = nlohmann::json::parse(machine.out);
  EXPECT_EQ(json["verdict"], "never_entered");
  EXPECT_EQ(json["ranks"], nlohmann::json::array({1}));
  EXPECT_EQ(json["flights"].size(), 3u);
  EXPECT_EQ(json["flights"][1]["operations"][0]["op"], "broadcast");
}

// The launcher may end the other ranks before they notice the death, even before they have finished
// the broadcast. tests/engine/collectives/explain_test.cpp tests the verdict for each of these
// moments.
testing::Matcher<const std::string&> explains_that_rank_1_died() {
  return testing::ContainsRegex("(rank |ranks 0-)1[^\n]* broadcast #1");
}

TEST(FlightRecords, a_rank_that_is_killed_is_explained) {
  PacelineProcess paceline(job("dies"));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, explains_that_rank_1_died());
  EXPECT_TRUE(has_records(records_named_in(outcome.err)));
}

TEST(FlightRecords, no_rank_is_named_that_the_report_does_not_name) {
  const Outcome outcome = run_paceline(job("throws"));
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, AnyOf(Says("run.first_failure", 1, "exit code 4"),
                                 Says("run.first_failure", 2, "exit code 4")));
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure", 0)));
}

TEST(FlightRecords, a_hang_that_is_interrupted_is_explained_and_can_be_looked_at_before) {
  const FreshDirectory logs;
  PacelineProcess paceline(job("hangs", {"--log-dir", logs.path()}));
  paceline.wait_for_lines("waiting", 1);
  std::this_thread::sleep_for(1500ms);  // a shorter wait is not reported as a hang
  EXPECT_THAT(run_paceline({"explain", logs.path()}).out,
              Says("records.never_entered", "rank 1", kOperation));
  paceline.send(SIGINT);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, Says("records.others_wait", "rank 1", kOperation, "broadcast #1",
                                "ranks 0, 2 have", "1."));
}

TEST(FlightRecords, the_users_directory_is_used_and_an_empty_one_means_none) {
  const FreshDirectory directory;
  const Outcome outcome =
      run_paceline(job("dies"), {{"PACELINE_FLIGHT_DIR", directory.file("flights")}});
  EXPECT_EQ(records_named_in(outcome.err), directory.file("flights"));
  EXPECT_TRUE(has_records(directory.path()));
  const Outcome without = run_paceline(job("dies"), {{"PACELINE_FLIGHT_DIR", ""}});
  EXPECT_THAT(without.err, Not(Says("records.kept")));
}

TEST(Explain, takes_the_last_job_that_failed) {
  const FreshDirectory temporary;
  const PacelineProcess::Variables here = {{"TMPDIR", temporary.path()}};
  const Outcome none = run_paceline({"explain"}, here);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, Says("explain.no_failure", temporary.path()));
  EXPECT_EQ(run_paceline(job("misses"), here).exit_code, 5);
  const Outcome last = run_paceline(job("dies"), here);
  EXPECT_EQ(run_paceline(job("ends"), here).exit_code, 0);
  EXPECT_EQ(run_paceline({"run", "false"}, here).exit_code, 1);  // this job leaves no records
  PacelineProcess running(job("hangs"), here);
  running.wait_for_lines("waiting", 1);
  const Outcome outcome = run_paceline({"explain"}, here);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("explain.last_failure", records_named_in(last.err)));
  EXPECT_THAT(outcome.out, explains_that_rank_1_died());
}

TEST(Explain, says_that_no_record_can_be_read) {
  const FreshDirectory directory;
  std::ofstream(directory.file("rank-000.flight")) << "no record";
  const Outcome outcome = run_paceline({"explain", directory.path()});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.out, testing::StartsWith("no readable record in " + directory.path() +
                                               ": 1 damaged or foreign file"));
  EXPECT_THAT(outcome.out, Says("explain.left_out"));
}

TEST(Explain, refuses_what_it_cannot_read_and_shows_its_usage) {
  EXPECT_EQ(run_paceline({"explain", "a", "b"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"explain", "/no/such/place"}).exit_code, 3);
  const FreshDirectory empty;
  const Outcome nothing = run_paceline({"explain", empty.path()});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, Says("explain.no_flights", empty.path()));
  EXPECT_EQ(run_paceline({"explain", "--jsn", "x"}).exit_code, 2);
  EXPECT_THAT(run_paceline({"explain", "--help"}).out, HasSubstr("paceline explain"));
}

}  // namespace
}  // namespace paceline::launcher
