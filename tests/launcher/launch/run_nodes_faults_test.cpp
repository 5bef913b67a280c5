// Faults while the agents of a job meet: unknown names, other versions, wrong clocks, hosts that
// disappear.

#include <csignal>
#include <fstream>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/coordination/job_control.h"

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/job_nodes.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::Not;

class RunNodesFaults : public JobNodes {
 protected:
  Endpoint endpoint() const { return {"127.0.0.1", port_.port}; }
};

// Runs a command with host names of its own, which the test may change.
const char* const kWithNames =
    "mount --bind $0/hosts /etc/hosts && mount --bind $0/switch /etc/nsswitch.conf && exec \"$@\"";

TEST_F(RunNodesFaults, a_meeting_place_whose_name_is_not_known_yet_is_waited_for) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, for a file system with other names";
  std::ofstream(directory_.file("switch")) << "hosts: files\n";
  std::ofstream(directory_.file("hosts")) << "127.0.0.1 localhost\n";
  std::vector<Node> nodes;
  for (const std::string is_host : {"true", "false"}) {
    nodes.push_back(std::make_unique<PacelineProcess>(
        std::vector<std::string>{"-m", "sh", "-c", kWithNames, directory_.path(), PACELINE_COMMAND,
                                 "run", "--nnodes", "2", "--rdzv-conf", "is_host=" + is_host,
                                 "--rdzv-endpoint", "head.job:" + std::to_string(port_.port),
                                 "echo", "$RANK"},
        PacelineProcess::Variables{{"PACELINE_SECRET_FILE", secret_}}, "/usr/bin/unshare"));
  }
  for (const auto& node : nodes) node->wait_for(Says("nodes.place_tried_again", 600));
  std::ofstream(directory_.file("hosts"), std::ios::app) << "127.0.0.1 head.job\n";
  for (const auto& node : nodes) {
    const Outcome outcome = node->wait();
    if (outcome.err.find("unshare: ") != std::string::npos) {
      GTEST_SKIP() << "no file system with other names here: " << outcome.err;
    }
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(Says("nodes.address_unknown", "head.job"),
                                   Says("nodes.place_tried_again", 600)));
  }
}

// Without agents every rank gets MASTER_ADDR, including rank 0.
TEST_F(RunNodesFaults, ranks_wait_for_the_masters_name) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, for a file system with other names";
  std::ofstream(directory_.file("switch")) << "hosts: files\n";
  std::ofstream(directory_.file("hosts")) << "127.0.0.1 localhost\n";
  std::vector<Node> ranks;
  for (const std::string rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<PacelineProcess>(
        std::vector<std::string>{"-m", "sh", "-c", kWithNames, directory_.path(), RECORDED_PROGRAM,
                                 "works"},
        PacelineProcess::Variables{{"PACELINE_SECRET_FILE", secret_},
                                   {"RANK", rank},
                                   {"WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "head.job"},
                                   {"MASTER_PORT", std::to_string(port_.port)}},
        "/usr/bin/unshare"));
  }
  for (const auto& rank : ranks) rank->wait_for(Says("nodes.address_tried_again", "head.job"));
  std::ofstream(directory_.file("hosts"), std::ios::app) << "127.0.0.1 head.job\n";
  for (const auto& rank : ranks) {
    const Outcome outcome = rank->wait();
    if (outcome.err.find("unshare: ") != std::string::npos) {
      GTEST_SKIP() << "no file system with other names here: " << outcome.err;
    }
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, Says("nodes.address_tried_again", "head.job"));
  }
}

TEST_F(RunNodesFaults, a_meeting_place_whose_name_stays_unknown_is_named_at_the_end) {
  PacelineProcess lost({"run", "--nnodes", "2", "--rdzv-conf", "join_timeout=1.5",
                        "--rdzv-endpoint", "no-such-host.invalid:29400", "true"},
                       {{"PACELINE_SECRET_FILE", secret_}});
  const Outcome outcome = lost.wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(Says("nodes.not_found", "no-such-host.invalid:29400"),
                                 Says("nodes.address_unknown", "no-such-host.invalid")));
}

TEST_F(RunNodesFaults, two_nodes_with_the_first_node_rank_are_told_so) {
  const auto first = start_with("", "2", "true", {"--node-rank", "0"});
  const std::string listener = fmt::format(":{:04X} 00000000:0000 0A ", port_.port);
  const auto listens = [&] {
    std::ifstream file("/proc/net/tcp");
    return std::string(std::istreambuf_iterator<char>(file), {}).find(listener) !=
           std::string::npos;
  };
  EXPECT_TRUE(harness::wait_until(listens, Deadline::after(20s)));
  const auto second = start_with("", "2", "true", {"--node-rank", "0"});
  const Outcome outcome = second->wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("nodes.place_taken", "--node-rank 0", to_string(endpoint())));
  first->send(SIGTERM);
  first->wait();
}

TEST_F(RunNodesFaults, another_secret_is_told_to_both_sides) {
  const auto first = start_first("2", "true");
  const std::string other = directory_.file("other");
  std::ofstream(other) << "ffffffffffffffffffffffffffffffff\n";
  chmod(other.c_str(), 0600);
  PacelineProcess stranger({"run", "--nnodes", "2", "--rdzv-conf", "is_host=false",
                            "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_.port), "true"},
                           {{"PACELINE_SECRET_FILE", other}});
  const Outcome outcome = stranger.wait();
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Says("nodes.secret_differs", to_string(endpoint())));
  first->send(SIGTERM);
  EXPECT_THAT(first->wait().err, Says("nodes.other_secret"));
}

TEST_F(RunNodesFaults, strangers_are_refused_while_no_process_reads_the_agents_stderr) {
  const auto first = start_first("2", "true");
  Fd stranger = connect_tcp(endpoint(), Deadline::after(20s));
  const std::string path = fmt::format("/proc/{}/fd/2", first->pid());
  Fd err(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(err);
  const std::string line(100, '\n');
  while (write(err.get(), line.data(), line.size()) > 0) {
  }
  const std::string_view request = "GET / HTTP/1.0\r\n\r\n";
  ASSERT_EQ(write(stranger.get(), request.data(), request.size()), std::ssize(request));
  char bytes[256];
  const Deadline deadline = Deadline::after(20s);
  bool answers = true;
  while ((answers = await(stranger.get(), POLLIN, deadline)) &&
         read(stranger.get(), bytes, sizeof bytes) > 0) {
  }
  EXPECT_TRUE(answers) << "the agent has not closed the connection";
  err.reset();  // wait() reads up to the end of the pipe
  first->send(SIGTERM);
  EXPECT_THAT(first->wait().err, Says("coordinator.refused_connection"));
}

// The test itself acts as an agent of another version.
TEST_F(RunNodesFaults, another_version_is_refused_and_both_are_named) {
  const auto first = start_first("2", "true");
  EventLoop loop;
  const Secret secret = Secret::from_text("0123456789abcdef0123456789abcdef");
  std::unique_ptr<CoordinatorLink> link;
  const Deadline deadline = Deadline::after(20s);
  while (!link) {
    try {
      link = std::make_unique<CoordinatorLink>(loop, endpoint(), secret, KeepAlive{}, deadline);
    } catch (const Error&) {
      ASSERT_FALSE(deadline.expired());
    }
  }
  link->report(Joining{.terms = {.version = "0.0.1", .run_id = "none"},
                       .host = "old",
                       .stand_in = {"127.0.0.1", 1},
                       .offer = {{"127.0.0.1", 1}, {"127.0.0.1", 1}}});
  std::vector<Order> orders;
  while (orders.empty() && link->lost().empty() && !deadline.expired()) {
    loop.turn(Deadline::after(100ms));
    link->tend();
    orders = link->take_orders();
  }
  ASSERT_EQ(orders.size(), 1u) << link->lost();
  const auto* end = std::get_if<EndOrder>(&orders.front());
  ASSERT_TRUE(end != nullptr);
  EXPECT_EQ(end->exit_code, 2);
  EXPECT_THAT(end->reason, Says("nodes.other_version", "0.0.1"));
  // The job continues without that agent.
  const auto second = start("2", "true");
  EXPECT_EQ(first->wait().exit_code, 0);
  EXPECT_EQ(second->wait().exit_code, 0);
}

// A preloaded library changes the wall clock, and a namespace the monotonic one.
TEST_F(RunNodesFaults, a_host_whose_clocks_are_an_hour_off_takes_part) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, for a monotonic clock of its own";
  std::vector<std::string> common = {"run",
                                     "--nnodes",
                                     "2",
                                     "--rdzv-endpoint",
                                     "127.0.0.1:" + std::to_string(port_.port),
                                     "--max-restarts",
                                     "1",
                                     "--timeline",
                                     directory_.file("timeline.json")};
  const std::vector<std::string> program = {
      "sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; exec " RECORDED_PROGRAM " works"};
  std::vector<std::string> late = {"-T",   "--monotonic", "3600",         "--boottime",
                                   "3600", "--fork",      "--kill-child", PACELINE_COMMAND};
  const auto add = [](std::vector<std::string>& to, const std::vector<std::string>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  add(late, common);
  add(late, {"--rdzv-conf", "is_host=false"});
  add(late, program);
  add(common, {"--rdzv-conf", "is_host=true"});
  add(common, program);
  PacelineProcess first(common, {{"PACELINE_SECRET_FILE", secret_}});
  PacelineProcess second(late,
                         {{"PACELINE_SECRET_FILE", secret_},
                          {"LD_PRELOAD", LATE_CLOCK},
                          {"ASAN_OPTIONS", "verify_asan_link_order=0"}},
                         "/usr/bin/unshare");
  for (PacelineProcess* node : {&first, &second}) {
    const Outcome outcome = node->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, Says("run.restarts", 1, 1, 1));
  }
}

TEST_F(RunNodesFaults, a_host_that_disappears_before_the_job_begins_is_replaced) {
  const auto first = start_first("3", "echo $P");
  const auto gone = start("3", "echo $P");
  std::this_thread::sleep_for(300ms);  // by now it may have joined or not
  gone->send(SIGKILL);
  // Waits for its agent too. If the agent were alive when the others arrive, it would be admitted
  // with them.
  gone->wait();
  const auto second = start("3", "echo $P");
  const auto third = start("3", "echo $P");
  const Outcome outcome = first->wait();
  EXPECT_EQ(outcome.out, "[0] 0/3/0\n") << outcome.err;
  for (const auto* const other : {&second, &third}) {
    const Outcome end = (*other)->wait();
    EXPECT_EQ(end.exit_code, 0) << end.err;
  }
}

TEST_F(RunNodesFaults, a_host_that_disappears_while_its_ranks_start_is_replaced_by_a_restart) {
  // The ranks of the first generation never meet.
  const std::string script = "echo $P; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60";
  const auto first = start_first("2", script, {"--max-restarts", "1"});
  const auto gone = start("2", script, {"--max-restarts", "1"});
  gone->wait_for_lines("[1] 1/2/0", 1);
  gone->send(SIGKILL);
  // The new node may arrive before any agent has noticed that the old one was lost.
  const Outcome second = start("2", script, {"--max-restarts", "1"})->wait();
  EXPECT_EQ(second.out, "[1] 1/2/1\n") << second.err;
  const Outcome outcome = first->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.restarts", 1, 1, 1, "host "));
}

TEST_F(RunNodesFaults, a_node_too_many_waits_and_joins_when_another_is_lost) {
  const std::string script = "echo $P; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60";
  const auto first = start_first("2", script, {"--max-restarts", "1"});
  auto second = start("2", script, {"--max-restarts", "1"});
  first->wait_for_lines("[0] 0/2/0", 1);
  second->wait_for_lines("[1] 1/2/0", 1);
  const auto spare = start("2", script, {"--max-restarts", "1"});
  std::this_thread::sleep_for(500ms);  // it has already arrived, or arrives just then
  second->send(SIGKILL);
  const Outcome outcome = spare->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[1] 1/2/1\n");
  EXPECT_EQ(first->wait().exit_code, 0);
}

TEST_F(RunNodesFaults, a_node_that_was_not_needed_ends_with_the_job) {
  const std::string done = directory_.file("done");
  const std::string script = "echo $P; until [ -e " + done + " ]; do sleep 0.02; done";
  const auto leader = start_first("1:2", script);
  const auto second = start("1:2", script);
  leader->wait_for_lines("[0] 0/2/0", 1);
  second->wait_for_lines("[1] 1/2/0", 1);
  const std::string said = directory_.file("said");
  PacelineProcess spare(
      {"-c", "exec " PACELINE_COMMAND " run --nnodes 1:2 --rdzv-endpoint 127.0.0.1:" +
                 std::to_string(port_.port) + " --rdzv-conf is_host=false echo in 2> " + said},
      {{"PACELINE_SECRET_FILE", secret_}}, "/bin/sh");
  const auto words = [&] {
    std::ifstream file(said);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto is_waiting = [&] {
    return testing::Value(words(), Says("nodes.waits_to_replace", "2 nodes", 600));
  };
  ASSERT_TRUE(harness::wait_until(is_waiting, Deadline::after(20s))) << words();
  std::ofstream{done};
  const Outcome outcome = spare.wait();
  EXPECT_EQ(outcome.exit_code, 0) << words();
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(words(), Says("nodes.not_needed"));
  for (const auto* node : {&leader, &second}) EXPECT_EQ((*node)->wait().exit_code, 0);
}

TEST_F(RunNodesFaults, a_job_that_cannot_continue_ends_at_once_when_any_node_is_lost) {
  for (const std::string nnodes : {"2", "2:3"}) {
    for (const bool loses_leader : {true, false}) {
      const std::string conf = ",last_call_timeout=0.2";
      const auto leader = start_with("is_host=true" + conf, nnodes, "echo $P; exec sleep 60", {});
      const auto other = start_with("is_host=false" + conf, nnodes, "echo $P; exec sleep 60", {});
      leader->wait_for_lines("[0] 0/2/0", 1);
      other->wait_for_lines("[1] 1/2/0", 1);
      (loses_leader ? leader : other)->send(SIGKILL);
      const Outcome outcome = (loses_leader ? other : leader)->wait();
      EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
      EXPECT_LT(outcome.seconds.count(), 20);
      EXPECT_THAT(outcome.err, Says("run.ended_because"));
      EXPECT_THAT(outcome.err, Not(Says("nodes.looks_for_another")));
      (loses_leader ? leader : other)->wait();
    }
  }
}

TEST_F(RunNodesFaults, a_crash_loop_ends_the_job_on_all_nodes_with_its_reason) {
  const std::string script = "[ $RANK = 1 ] && exit 7; exec sleep 60";
  const auto first = start_first("2", script, {"--max-restarts", "1000"});
  const auto second = start("2", script, {"--max-restarts", "1000"});
  for (const auto* node : {&first, &second}) {
    const Outcome outcome = (*node)->wait();
    EXPECT_EQ(outcome.exit_code, 7) << outcome.err;
    EXPECT_THAT(outcome.err, Says("run.crash_loop", "ended with exit code 7", 3));
  }
}

}  // namespace
}  // namespace paceline::launcher
