// `paceline run --hosts --timeline` on network namespaces in place of hosts.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/job_timeline/trace_reader.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using nlohmann::json;
using testing::Not;

class RunHostsTimeline : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts.emplace(2);
    output = hosts->directory().file("trace.json");
  }

  Outcome run(std::vector<std::string> options, const std::vector<std::string>& program,
              const std::string& ssh = "") {
    std::vector<std::string> all = {
        "run",  "--hosts",     hosts->list(1),  "--timeline",
        output, "--all-ranks", "--ssh-command", ssh.empty() ? hosts->ssh() : ssh};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), program.begin(), program.end());
    PacelineProcess paceline(all);
    Outcome outcome = paceline.wait();
    EXPECT_TRUE(std::filesystem::is_empty(paceline.temporary()));
    return outcome;
  }
  double clock_error() const {
    return json::parse(read_text(output)).at("otherData").at("clock_error_us").get<double>();
  }

  std::optional<NetworkHosts> hosts;
  std::string output;
};

// The begin and the end of each rank's all_reduce with this sequence number, in microseconds.
std::map<int, std::pair<double, double>> all_reduce(const std::vector<json>& spans,
                                                    std::uint64_t sequence) {
  std::map<int, std::pair<double, double>> times;
  for (const json& span : spans) {
    if (span["name"] != "all_reduce" || span["args"]["sequence"] != sequence) continue;
    const double begin = span["ts"].get<double>();
    times[span["pid"].get<int>()] = {begin, begin + span["dur"].get<double>()};
  }
  return times;
}

// No rank may leave an all_reduce before the last rank has entered it.
void expect_causal(const std::vector<json>& spans, double clock_error) {
  int compared = 0;
  for (std::uint64_t sequence = 1; sequence < 250; ++sequence) {
    const auto times = all_reduce(spans, sequence);
    if (times.size() < 2) continue;
    ++compared;
    const auto [begin0, end0] = times.at(0);
    const auto [begin1, end1] = times.at(1);
    EXPECT_LE(std::max(begin0, begin1), std::min(end0, end1) + clock_error) << sequence;
  }
  EXPECT_GT(compared, 100);
}

TEST_F(RunHostsTimeline, the_spans_of_all_hosts_are_in_one_file_here) {
  const Outcome outcome = run({}, {RECORDED_PROGRAM, "ends"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("timeline.made", output));
  EXPECT_THAT(outcome.err, Says("timeline.spans_of_hosts", 2));
  std::multiset<int> ranks;
  for (const json& span : strict_spans(output)) {
    if (span["name"] == "all_reduce") ranks.insert(span["pid"].get<int>());
  }
  EXPECT_EQ(ranks, (std::multiset<int>{0, 1}));
  EXPECT_GT(clock_error(), 0);
}

// The ranks of both hosts record before the first agent collects the files.
TEST_F(RunHostsTimeline, hosts_that_share_the_log_folder_take_their_own_ranks_files) {
  const std::string logs = hosts->directory().file("shared");
  const Outcome outcome = run({"--log-dir", logs}, {RECORDED_PROGRAM, "works"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(Says("timeline.left_out")));
  std::map<int, int> num_broadcasts;
  for (const json& span : strict_spans(output)) {
    if (span["name"] == "broadcast") ++num_broadcasts[span["pid"].get<int>()];
  }
  EXPECT_EQ(num_broadcasts, (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST_F(RunHostsTimeline, a_host_whose_clock_is_an_hour_ahead_is_on_the_same_clock) {
  const std::string ahead = "unshare --time --monotonic 3600 --fork --kill-child ";
  if (std::system((ahead + "true 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "time namespaces are not allowed here";
  }
  const std::string ssh =
      hosts->ssh_after("[ $1 = 10.77.0.2 ] && exec " + ahead + hosts->ssh() + " \"$@\"");
  const Outcome outcome = run({}, {RECORDED_PROGRAM, "works"}, ssh);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto spans = strict_spans(output);
  EXPECT_LT(clock_error(), 1e6);
  expect_causal(spans, clock_error());
  double last = 0;
  for (const json& span : spans) last = std::max(last, span["ts"].get<double>());
  EXPECT_LT(last, 600e6) << "microseconds";
}

TEST_F(RunHostsTimeline, a_job_that_fails_leaves_it_too) {
  const Outcome outcome = run({}, {RECORDED_PROGRAM, "dies"});
  EXPECT_NE(outcome.exit_code, 0) << outcome.err;
  std::set<int> ranks;
  for (const json& span : strict_spans(output)) ranks.insert(span["pid"].get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
}

TEST_F(RunHostsTimeline, all_generations_of_a_job_that_continues_are_in_it) {
  const Outcome outcome = run({"--max-restarts", "1"}, {RECORDED_PROGRAM, "restarts"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("timeline.spans_of_hosts", 2));
  int broadcasts = 0;
  for (const json& span : strict_spans(output)) broadcasts += span["name"] == "broadcast" ? 1 : 0;
  EXPECT_EQ(broadcasts, 4);
}

TEST_F(RunHostsTimeline, a_host_that_sends_none_and_a_program_without_groups_are_said) {
  const Outcome some = run(
      {}, {"sh", "-c",
           "[ $RANK = 1 ] && exit 0; unset RANK WORLD_SIZE; exec "
           "env RANK=0 WORLD_SIZE=1 PACELINE_FLIGHT_DIR=$PACELINE_TIMELINE_DIR " RECORDED_PROGRAM
           " ends"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(some.err, Says("timeline.host_left_out", "10.77.0.2"));
  const Outcome none = run({}, {"true"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(none.err, Says("timeline.nothing_recorded"));
  EXPECT_THAT(none.err, Not(Says("timeline.left_out")));
}

}  // namespace
}  // namespace paceline::launcher
