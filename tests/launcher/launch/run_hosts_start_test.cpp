// Hosts that cannot be reached, do not answer, or are lost: a clear message names the host, and
// everything else is ended.

#include <csignal>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/process/process.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

using Arguments = std::vector<std::string>;

class RunHostsStart : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts.emplace(2);
  }

  // Starts a job whose connections are made by `ssh`. Its ranks would make a file.
  Outcome start(const std::string& ssh, const std::string& list = "10.77.0.1:1,10.77.0.2:1",
                const Arguments& options = {}) {
    Arguments arguments = {"run", "--hosts", list, "--ssh-command", ssh};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"touch", hosts->directory().file("started")});
    return run_paceline(arguments);
  }
  bool started() const { return std::filesystem::exists(hosts->directory().file("started")); }

  std::optional<NetworkHosts> hosts;
};

TEST_F(RunHostsStart, a_name_that_does_not_resolve_is_named) {
  const Outcome outcome = start(hosts->ssh(), "10.77.0.1:1,nosuch.invalid:1");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.unreachable", "host nosuch.invalid"),
                                 HasSubstr("Could not resolve hostname")));
  EXPECT_FALSE(started());
}

TEST_F(RunHostsStart, a_host_that_refuses_is_named_with_its_words) {
  const std::string refuses = hosts->ssh_after(
      "[ $1 = 10.77.0.2 ] && { echo 'Permission denied (publickey).' >&2; exit 255; }");
  const Outcome outcome = start(refuses);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.unreachable", "host 10.77.0.2", refuses,
                                      "ended with exit code 255"),
                                 HasSubstr("  | Permission denied (publickey).")));
  EXPECT_FALSE(started());
}

TEST_F(RunHostsStart, an_ssh_that_is_missing_is_named) {
  const Outcome outcome = start("/nowhere/ssh");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("hosts.no_ssh", "10.77.0.1", "/nowhere/ssh"));
}

TEST_F(RunHostsStart, a_host_without_paceline_is_named_with_the_option_to_give) {
  const Outcome outcome =
      start(hosts->ssh(), "10.77.0.1:1,10.77.0.2:1", {"--remote-paceline", "/opt/no/paceline"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("hosts.no_paceline"));
}

TEST_F(RunHostsStart, the_path_of_paceline_reaches_the_shell_as_one_word) {
  const std::string file = hosts->directory().file("touched");
  const Outcome outcome =
      start(hosts->ssh(), "10.77.0.1:1", {"--remote-paceline", "/x'; touch " + file + "; '"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(RunHostsStart, another_version_on_a_host_is_refused) {
  const std::string other = hosts->ssh_after(
      "[ $1 = 10.77.0.2 ] && { printf '\\001paceline-remote-1\\nH\\005\\000\\000\\0009.9.9'; "
      "exec sleep 60; }");
  const Outcome outcome = start(other);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("hosts.other_version", "host 10.77.0.2", "9.9.9"));
  EXPECT_FALSE(started());
}

TEST_F(RunHostsStart, something_else_that_answers_is_refused) {
  const std::string other = hosts->ssh_after(
      "[ $1 = 10.77.0.2 ] && { printf '\\001paceline-remote-1\\nHTTP/1.0 200 OK'; exec sleep 60; "
      "}");
  const Outcome outcome = start(other);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err,
              AllOf(Says("hosts.unreachable", "host 10.77.0.2"), Says("hosts.foreign_bytes")));
}

// Frames of known kinds whose payload is too short or too long.
TEST_F(RunHostsStart, a_host_that_sends_a_wrong_message_is_named) {
  std::istringstream version(run_paceline({"--version"}).out);  // "paceline 1.0.0 (...)"
  std::string number;
  version >> number >> number;
  const std::string long_endpoint = encode(Endpoint{"10.77.0.1", 1}) + "x";
  for (const FrameKind kind : {FrameKind::kPort, FrameKind::kClock, FrameKind::kLeads,
                               FrameKind::kOver, FrameKind::kInputTaken, FrameKind::kExit}) {
    for (const std::string& payload : {std::string(), long_endpoint}) {
      SCOPED_TRACE(fmt::format("{} with {} bytes", static_cast<char>(kind), payload.size()));
      const std::string frames = hosts->directory().write(
          "frames", std::string(kGreeting) + encode_frame(FrameKind::kHello, number) +
                        encode_frame(kind, payload));
      const Outcome outcome =
          start(hosts->ssh_after("cat " + frames + "; exec sleep 60"), "10.77.0.1:1");
      EXPECT_EQ(outcome.exit_code, 3);
      EXPECT_THAT(outcome.err, AllOf(Says("hosts.connection_lost", "host 10.77.0.1"),
                                     HasSubstr("\n  | a message ")));
    }
  }
}

TEST(RunRemoteAgent, refuses_a_wrong_message_of_the_launcher) {
  for (const FrameKind kind : {FrameKind::kSignal, FrameKind::kClock, FrameKind::kJob}) {
    PacelineProcess agent({"remote-agent"});
    agent.write_stdin(encode_frame(kind));
    const Outcome outcome = agent.wait();
    EXPECT_EQ(outcome.exit_code, 3) << static_cast<char>(kind);
    EXPECT_THAT(outcome.err, HasSubstr("paceline remote-agent: ")) << static_cast<char>(kind);
  }
}

TEST_F(RunHostsStart, output_of_a_login_does_no_harm) {
  const Outcome outcome = start(hosts->ssh_after("echo Welcome; echo motd >&2"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out + outcome.err, "");
  EXPECT_TRUE(started());
}

TEST_F(RunHostsStart, a_host_that_does_not_answer_in_time_is_named) {
  const std::string silent =
      hosts->ssh_after("[ $1 = 10.77.0.2 ] && { echo looking >&2; exec sleep 60; }");
  const Outcome outcome = start(silent, "10.77.0.1:1,10.77.0.2:1", {"--start-timeout", "1"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err,
              AllOf(Says("hosts.no_answer", 1, "10.77.0.2"), HasSubstr("  | looking")));
  EXPECT_LT(outcome.seconds.count(), 20.0);
  EXPECT_FALSE(started());
}

TEST_F(RunHostsStart, a_host_that_disappears_during_the_start_is_named) {
  const std::string dies = hosts->ssh_after("[ $1 = 10.77.0.2 ] && { sleep 0.5; kill -9 $$; }");
  const Outcome outcome = start(dies);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err,
              Says("hosts.unreachable", "host 10.77.0.2", dies, "was killed by SIGKILL"));
  EXPECT_FALSE(started());
}

TEST_F(RunHostsStart, a_working_directory_that_a_host_does_not_have_is_named) {
  const FreshDirectory directory;
  const std::string gone = directory.file("gone");
  std::filesystem::create_directory(gone);
  const std::string removes = hosts->ssh_after("rmdir " + gone + " 2>/dev/null");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(gone);
  const Outcome outcome = start(removes, "10.77.0.1:1");
  std::filesystem::current_path(before);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("hosts.no_directory", "10.77.0.1", gone, "No such file"));
}

TEST_F(RunHostsStart, a_program_that_a_host_does_not_have_is_127) {
  Outcome outcome = run_paceline({"run", "--hosts", "10.77.0.1:1,10.77.0.2:1", "--ssh-command",
                                  hosts->ssh(), "no-such-program"});
  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_THAT(outcome.err, Says("program.not_in_path", "no-such-program"));
}

// The connection ends without a message, as when a machine loses its power. The other ranks are
// stopped, and so are the ranks at the other end.
TEST_F(RunHostsStart, a_connection_that_is_lost_ends_the_job) {
  PacelineProcess paceline({"run", "--hosts", hosts->list(1), "--all-ranks", "--ssh-command",
                            hosts->ssh_after("echo $$ > " + hosts->directory().path() + "/pid-$1"),
                            "sh", "-c", "trap '' TERM; echo ready $$; while :; do sleep 1; done"});
  std::vector<std::string> pids;
  for (int i = 0; i < 2; ++i) {
    const auto start = fmt::format("[{}:{}] ready ", NetworkHosts::name(i), i);
    pids.push_back(paceline.wait_for_lines(start, 1).front());
  }
  const auto ranks = open_pidfds(pids);
  pid_t connection = 0;
  std::ifstream(hosts->directory().file("pid-10.77.0.2")) >> connection;
  kill(connection, SIGKILL);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("hosts.connection_lost", "host 10.77.0.2"));
  EXPECT_TRUE(all_gone(ranks, 10s));
}

}  // namespace
}  // namespace paceline::launcher
