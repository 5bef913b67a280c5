// How `paceline ps`, `logs` and `stop` see jobs on several hosts from one machine.

#include <csignal>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/launcher/launch/job_nodes.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::StartsWith;

// The entries of `paceline ps` with this id.
std::vector<nlohmann::json> entries_of(const std::string& id) {
  std::vector<nlohmann::json> entries;
  for (const auto& entry : nlohmann::json::parse(run_paceline({"ps", "--json"}).out)) {
    if (entry["job"] == id) entries.push_back(entry);
  }
  return entries;
}

std::string id_of(pid_t supervisor) {
  for (const auto& entry : nlohmann::json::parse(run_paceline({"ps", "--json"}).out)) {
    if (entry["supervisor"] == supervisor) return entry["job"];
  }
  return "";
}

TEST(JobParts, of_hosts_are_one_job_with_its_launcher_which_stop_ends_everywhere) {
  PacelineProcess paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--all-ranks", "sh", "-c",
                            "echo ready $$; sleep 60 & wait"});
  const auto a = paceline.wait_for_lines("[localhost:0] ready ", 1);
  const auto b = paceline.wait_for_lines("[127.0.0.1:1] ready ", 1);
  const std::vector<Fd> ranks = open_pidfds({a[0], b[0]});
  const std::string id = id_of(paceline.pid());
  EXPECT_NE(id, "none");
  const auto entries = entries_of(id);
  ASSERT_EQ(entries.size(), 3u);
  int num_launchers = 0;
  std::set<int> listed;
  for (const auto& entry : entries) {
    if (!entry["hosts"].empty()) {
      ++num_launchers;
      EXPECT_EQ(entry["supervisor"], paceline.pid());
      EXPECT_EQ(entry["hosts"][1], "127.0.0.1");
      EXPECT_EQ(entry["world_size"], 2);
    }
    for (const auto& rank : entry["ranks"]) listed.insert(rank["rank"].get<int>());
  }
  EXPECT_EQ(num_launchers, 1);
  EXPECT_EQ(listed, (std::set<int>{0, 1}));
  EXPECT_THAT(run_paceline({"ps"}).out, HasSubstr("on 2 hosts"));
  const Outcome logs = run_paceline({"logs", id});
  EXPECT_THAT(logs.out, HasSubstr("[0] ready")) << logs.err;
  EXPECT_THAT(logs.out, HasSubstr("[1] ready"));
  EXPECT_THAT(run_paceline({"logs", id, "--rank", "1"}).out, StartsWith("ready " + b[0]));
  const Outcome top = run_paceline({"top", "--once", id});
  EXPECT_EQ(top.exit_code, 2);
  EXPECT_THAT(top.err, Says("jobs.several_launchers", 2));
  const Outcome stop = run_paceline({"stop", id});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(stop.out, id + " has ended\n");
  EXPECT_EQ(paceline.wait().exit_code, 143);
  EXPECT_TRUE(all_gone(ranks, std::chrono::seconds(5)));
}

TEST(JobParts, of_hosts_in_a_slurm_job_are_named_after_it) {
  const Outcome outcome =
      run_paceline({"run", "--hosts", "localhost:1,127.0.0.1:1", "--dry-run", "true"},
                   {{"SLURM_JOB_ID", "4711"}});
  EXPECT_THAT(outcome.out, HasSubstr("--rdzv-id=4711-")) << outcome.err;
}

class JobPartsByHand : public JobNodes {};

// "none" is torchrun's id for agents that are started one by one. Other jobs have it as well.
TEST_F(JobPartsByHand, that_are_called_alike_are_not_guessed_at) {
  const std::string script = "echo ready; sleep 60 & wait";
  const Node a = start_first("2", script), b = start("2", script);
  a->wait_for_lines("[0] ready", 1);
  b->wait_for_lines("[1] ready", 1);
  ASSERT_EQ(id_of(a->pid()), "none");
  for (const std::string command : {"stop", "logs", "top", "stacks"}) {
    const Outcome outcome = run_paceline({command, "none"});
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, Says("jobs.alike", "none"));  // other tests may also run such jobs
    EXPECT_THAT(outcome.err, HasSubstr(std::to_string(a->pid()) + " (rank 0 of 2, "));
    EXPECT_THAT(outcome.err, HasSubstr(std::to_string(b->pid()) + " (rank 1 of 2, "));
  }
  EXPECT_FALSE(id_of(a->pid()).empty());  // the job was not stopped
  EXPECT_FALSE(id_of(b->pid()).empty());
  EXPECT_THAT(run_paceline({"ps"}).out, HasSubstr("rank 1 of 2"));
  const Outcome logs = run_paceline({"logs", std::to_string(b->pid())});
  EXPECT_EQ(logs.out, "ready\n") << logs.err;
  EXPECT_EQ(run_paceline({"stop", std::to_string(a->pid())}).exit_code, 0);
  EXPECT_EQ(a->wait().exit_code, 143);
  b->wait();
}

TEST_F(JobPartsByHand, with_an_id_of_their_own_are_stopped_together) {
  const std::string script = "echo ready; sleep 60 & wait";
  const std::vector<std::string> options = {"--rdzv-id", "by-hand-test"};
  const Node a = start_first("2", script, options), b = start("2", script, options);
  a->wait_for_lines("[0] ready", 1);
  b->wait_for_lines("[1] ready", 1);
  const Outcome stop = run_paceline({"stop", "by-hand-test"});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(stop.out, "by-hand-test has ended\n");
  a->wait();
  b->wait();
  EXPECT_TRUE(id_of(b->pid()).empty());
}

}  // namespace
}  // namespace paceline::launcher
