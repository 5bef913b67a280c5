// Hosts of `paceline run --hosts` that are lost and come back, on network namespaces.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/hosts_fixture.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::Not;

class RunHostsReturn : public HostsFixture {
 protected:
  // Each connection first runs `before`, with the host as $1.
  Job start(const Arguments& options, const std::string& before = "") {
    return HostsFixture::start(options, until_done(), ssh_with_pid(before));
  }
  bool wait_for_file(const std::string& name) const {
    const std::string path = hosts->directory().file(name);
    return harness::wait_until([&] { return std::filesystem::exists(path); }, Deadline::after(20s));
  }
  Outcome end(PacelineProcess& job) const {
    let_end();
    return job.wait();
  }
};

TEST_F(RunHostsReturn, a_lost_host_returns_to_an_elastic_job) {
  const auto job = start({"--nnodes", "1:2"});
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  cut(1);
  wait_for(*job, 0, "0/1/1");
  wait_for(*job, 0, "0/2/2");
  wait_for(*job, 1, "1/2/2");
  const Outcome outcome = end(*job);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.going_on", 1, 2), Says("hosts.back", "host 10.77.0.2"),
                                 Says("run.host_joins", 2, "10.77.0.2")));
}

// By then the other nodes meet at another place.
TEST_F(RunHostsReturn, the_first_host_returns_to_the_node_that_leads_now) {
  const auto job = start({"--nnodes", "1:2"});
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  cut(0);
  wait_for(*job, 1, "0/1/1");
  wait_for(*job, 0, "0/2/2");
  wait_for(*job, 1, "1/2/2");
  const Outcome outcome = end(*job);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// Until the first host has answered it gets no part of the job, whatever happens to the others.
TEST_F(RunHostsReturn, the_first_host_returns_though_another_is_lost_while_it_is_started) {
  hosts.emplace(3);
  const auto file = [&](const char* name) { return hosts->directory().file(name); };
  const auto job =
      start({"--nnodes", "1:3", "--host-retries", "1"},
            "[ -e " + file("down") + " ] && [ $1 = 10.77.0.3 ] && exit 255\n" + "[ -e " +
                file("down") + " ] && [ $1 = 10.77.0.1 ] && { touch " + file("tried") +
                "; until [ -e " + file("up") + " ]; do sleep 0.02; done; }");
  for (const int host : {0, 1, 2}) wait_for(*job, host, fmt::format("{}/3/0", host));
  hosts->directory().write("down", "x");
  cut(0);
  wait_for(*job, 1, "1/2/1");
  ASSERT_TRUE(wait_for_file("tried"));
  cut(2);
  wait_for(*job, 1, "0/1/2");
  hosts->directory().write("up", "x");
  wait_for(*job, 0, "0/2/3");
  const Outcome outcome = end(*job);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(RunHostsReturn, a_job_of_a_fixed_size_waits_for_a_lost_host_and_restarts) {
  const auto job = start({"--max-restarts", "3"});
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  cut(1);
  wait_for(*job, 0, "0/2/1");
  wait_for(*job, 1, "1/2/1");
  const Outcome outcome = end(*job);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.waiting_for_it", 1, 2),
                                 Says("run.restarts", 1, 1, 3, "host 10.77.0.2 is lost"),
                                 Not(Says("hosts.going_on"))));
}

TEST_F(RunHostsReturn, a_host_that_could_not_be_reached_at_the_start_joins_later) {
  const std::string up = hosts->directory().file("up");
  const auto job = start({"--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0.2"},
                         "[ $1 = 10.77.0.2 ] && [ ! -e " + up + " ] && exit 255");
  wait_for(*job, 0, "0/1/0");
  hosts->directory().write("up", "x");
  wait_for(*job, 1, "1/2/1");
  const Outcome outcome = end(*job);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(RunHostsReturn, tries_have_an_end) {
  const std::string down = hosts->directory().file("down");
  const std::string ssh = "[ $1 = 10.77.0.2 ] && [ -e " + down + " ] && exit 255";
  const auto elastic = start({"--nnodes", "1:2", "--host-retries", "2"}, ssh);
  wait_for(*elastic, 1, "1/2/0");
  hosts->directory().write("down", "x");
  cut(1);
  wait_for(*elastic, 0, "0/1/1");
  EXPECT_TRUE(elastic->wait_for(Says("hosts.not_restarted", "host 10.77.0.2")));
  const Outcome outcome = end(*elastic);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("hosts.not_restarted", "host 10.77.0.2"));
}

TEST_F(RunHostsReturn, a_job_that_needs_a_host_that_does_not_return_ends) {
  const std::string down = hosts->directory().file("down");
  const auto job = start({"--max-restarts", "3", "--host-retries", "1"},
                         "[ $1 = 10.77.0.2 ] && [ -e " + down + " ] && exit 255");
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  hosts->directory().write("down", "x");
  cut(1);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, Says("hosts.not_restarted", "host 10.77.0.2"));
}

TEST_F(RunHostsReturn, a_signal_during_a_try_ends_the_job) {
  const std::string down = hosts->directory().file("down");
  const auto job =
      start({"--max-restarts", "3"}, "[ $1 = 10.77.0.2 ] && [ -e " + down + " ] && { touch " +
                                         hosts->directory().file("tried") + "; exec sleep 60; }");
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  hosts->directory().write("down", "x");
  cut(1);
  EXPECT_TRUE(wait_for_file("tried"));
  job->send(SIGTERM);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.err;
}

// A scheduler that knows of the silence first stops the job like this. The connection stays open,
// but nothing passes through it.
TEST_F(RunHostsReturn, a_host_that_fell_silent_is_named_when_the_job_is_stopped) {
  const std::string relay = hosts->directory().file("relay");
  const auto job = start({"--max-restarts", "3", "--shutdown-timeout", "1"},
                         "[ $1 = 10.77.0.2 ] && { " + hosts->ssh() +
                             " \"$@\" | { sh -c 'echo $PPID' > " + relay + "; cat; }; exit; }");
  wait_for(*job, 0, "0/2/0");
  wait_for(*job, 1, "1/2/0");
  pid_t pid = 0;
  std::ifstream(relay) >> pid;
  ASSERT_GT(pid, 1);
  const std::string whole = fmt::format("pkill -STOP -P {0}; kill -STOP {0}", pid);
  ASSERT_EQ(std::system(whole.c_str()), 0);
  std::this_thread::sleep_for(12s);
  job->send(SIGTERM);
  const Outcome outcome = job->wait();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.silent", "host 10.77.0.2"),
                                 testing::ContainsRegex("host 10.77.0.2 [^\n]* 1[0-9] s")));
  EXPECT_THAT(outcome.err, Not(Says("hosts.silent", "host 10.77.0.1")));
}

}  // namespace
}  // namespace paceline::launcher
