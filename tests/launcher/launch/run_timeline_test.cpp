// The timeline that a job leaves, and the command `paceline timeline`.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/launcher/job_timeline/trace_reader.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> job(const std::string& output, const std::string& how) {
  return {"run", "--nproc-per-node", "3", "--timeline", output, RECORDED_PROGRAM, how};
}

TEST(RunTimeline, a_job_leaves_its_trace_and_nothing_else) {
  const FreshDirectory directory;
  const std::string output = directory.file("trace.json");
  PacelineProcess paceline(job(output, "ends"));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("timeline.made", output, "6 spans of 3 ranks"));
  EXPECT_TRUE(std::filesystem::is_empty(paceline.temporary()));
  std::map<std::string, int> counts;
  for (const json& span : strict_spans(output)) ++counts[span["name"]];
  EXPECT_EQ(counts, (std::map<std::string, int>{{"all_reduce", 3}, {"broadcast", 3}}));
}

TEST(RunTimeline, a_job_that_fails_leaves_it_too) {
  const FreshDirectory directory;
  const std::string output = directory.file("trace.json");
  const Outcome outcome = run_paceline(job(output, "dies"));
  EXPECT_EQ(outcome.exit_code, 137);
  int broadcasts = 0;
  for (const json& span : strict_spans(output)) broadcasts += span["name"] == "broadcast" ? 1 : 0;
  EXPECT_GE(broadcasts, 1);  // the others may have been ended before they recorded theirs
}

TEST(RunTimeline, a_program_without_groups_is_said) {
  const FreshDirectory directory;
  const Outcome nothing = run_paceline({"run", "--timeline", directory.file("trace.json"), "true"});
  EXPECT_EQ(nothing.exit_code, 0);
  EXPECT_THAT(nothing.err, Says("timeline.nothing_recorded"));
}

TEST(RunTimeline, a_place_that_cannot_be_written_is_refused_before_the_start) {
  const FreshDirectory directory;
  const std::string started = directory.file("started");
  const std::string folder = directory.file("trace.json"), lost = directory.file("none/trace.json");
  std::filesystem::create_directory(folder);
  for (const auto& [place, why] :
       std::vector<std::pair<std::string, testing::Matcher<const std::string&>>>{
           {"/proc/trace.json",
            HasSubstr("--timeline: /proc/trace.json: /proc/trace.json.part: No such")},
           {folder, Says("usage.is_a_folder", "--timeline", folder)},
           {lost, Says("usage.no_folder", "--timeline", lost, directory.file("none"))}}) {
    const Outcome outcome = run_paceline({"run", "--timeline", place, "touch", started});
    EXPECT_EQ(outcome.exit_code, 2) << place;
    EXPECT_THAT(outcome.err, why);
  }
  EXPECT_FALSE(std::filesystem::exists(started));
  EXPECT_FALSE(std::filesystem::exists(directory.file("trace.json.part")));
}

TEST(RunTimeline, recorded_timelines_stay_when_the_trace_cannot_be_written) {
  const FreshDirectory directory;
  const std::string output = directory.file("gone/trace.json");
  std::filesystem::create_directory(directory.file("gone"));
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "3", "--timeline", output, "sh", "-c",
       "rm -rf " + directory.file("gone") + "; exec " RECORDED_PROGRAM " ends"});
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string advice = "what the ranks recorded is in ";
  const auto at = outcome.err.find(advice);
  ASSERT_NE(at, std::string::npos) << outcome.err;
  const std::string folder =
      outcome.err.substr(at + advice.size(), outcome.err.find(':', at) - at - advice.size());
  EXPECT_THAT(outcome.err, Says("timeline.not_opened", output + ".part",
                                "No such file or directory", folder, output, folder));
  const std::string again = directory.file("trace.json");
  EXPECT_EQ(run_paceline({"timeline", "-o", again, folder}).exit_code, 0);
  EXPECT_EQ(strict_spans(again).size(), 6u);
}

TEST(TimelineCommand, makes_the_trace_of_a_directory) {
  const FreshDirectory directory;
  const Outcome recorded =
      run_paceline({"run", "--nproc-per-node", "2", "env",
                    "PACELINE_TIMELINE_DIR=" + directory.path(), RECORDED_PROGRAM, "ends"});
  EXPECT_EQ(recorded.exit_code, 0) << recorded.err;
  const std::string output = directory.file("trace.json");
  const Outcome outcome = run_paceline({"timeline", "-o", output, directory.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, output + ": 4 spans of 2 ranks\n");
  EXPECT_EQ(strict_spans(output).size(), 4u);
  EXPECT_EQ(run_paceline({"timeline"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"timeline", directory.file("missing")}).exit_code, 3);
}

}  // namespace
}  // namespace paceline::launcher
