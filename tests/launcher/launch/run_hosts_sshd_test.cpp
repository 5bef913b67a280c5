// `paceline run --hosts` through a real ssh and sshd on loopback, with keys of their own.

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kSshd = "/usr/sbin/sshd";

class RunHostsSshd : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kSshd, X_OK) != 0) GTEST_SKIP() << "openssh-server is not installed";
    if (geteuid() != 0) GTEST_SKIP() << "sshd on a port of its own needs root to start sessions";
    std::filesystem::create_directories("/run/sshd");
    const std::string at = directory.path();
    std::filesystem::permissions(at, std::filesystem::perms::owner_all);
    ASSERT_EQ(std::system(fmt::format("cd {} && ssh-keygen -q -t ed25519 -N '' -f host && "
                                      "ssh-keygen -q -t ed25519 -N '' -f user && cp user.pub known",
                                      at)
                              .c_str()),
              0);
    const ReservedPort reserved = reserve_port(0);
    port = reserved.port;
    directory.write("config", fmt::format("Port {1}\nListenAddress 127.0.0.1\nHostKey {0}/host\n"
                                          "AuthorizedKeysFile {0}/known\nStrictModes no\n"
                                          "PidFile none\nUsePAM no\nPermitRootLogin yes\n"
                                          "PasswordAuthentication no\n",
                                          at, port));
    sshd = fork();
    if (sshd == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execl(kSshd, kSshd, "-D", "-e", "-f", directory.file("config").c_str(), "-E",
            directory.file("log").c_str(), nullptr);
      _exit(127);
    }
    connect_tcp({"127.0.0.1", port}, Deadline::after(20s));
  }

  void TearDown() override {
    if (sshd <= 0) return;
    kill(sshd, SIGKILL);
    waitpid(sshd, nullptr, 0);
  }

  std::string ssh(const std::string& key = "user", const std::string& config = "none") const {
    return fmt::format(
        "ssh -F {3} -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o IdentitiesOnly=yes "
        "-o UserKnownHostsFile={0}/hosts -i {0}/{1} -p {2}",
        directory.path(), key, port, config);
  }
  // The ssh command with the options of a user's configuration.
  std::string ssh_with(const std::string& options) const {
    directory.write("user_config", options + "\n");
    return ssh("user", directory.file("user_config"));
  }

  FreshDirectory directory;
  std::uint16_t port = 0;
  pid_t sshd = -1;
};

TEST_F(RunHostsSshd, starts_ranks_passes_arguments_and_ends_with_the_ranks_exit_code) {
  const std::string odd = "it's $HOME `id`;\n*";
  const Outcome good =
      run_paceline({"run", "--hosts", "root@127.0.0.1:1,root@localhost:1", "--ssh-command", ssh(),
                    "--all-ranks", RECORDED_PROGRAM, "ends"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out, "[127.0.0.1:0] waiting\n");
  const Outcome bad = run_paceline({"run", "--hosts", "root@127.0.0.1:1", "--ssh-command", ssh(),
                                    "sh", "-c", "printf %s \"$1\"; exit 255", "sh", odd});
  EXPECT_EQ(bad.exit_code, 255) << bad.err;  // the exit code of the rank, not of ssh
  EXPECT_EQ(bad.out, odd);
  EXPECT_THAT(bad.err, Says("run.first_failure", 0, "exit code 255"));
}

TEST_F(RunHostsSshd, a_signal_ends_the_ranks_behind_ssh) {
  PacelineProcess paceline({"run", "--hosts", "root@127.0.0.1:2", "--ssh-command", ssh(),
                            "--all-ranks", "sh", "-c",
                            "trap '' TERM HUP; echo ready $$; "
                            "while :; do sleep 1; done"});
  std::vector<std::string> pids;
  for (int i = 0; i < 2; ++i) {
    pids.push_back(paceline.wait_for_lines(fmt::format("[127.0.0.1:{}] ready ", i), 1).front());
  }
  const auto ranks = open_pidfds(pids);
  paceline.send(SIGKILL);  // now no process can pass anything on to ssh
  EXPECT_TRUE(all_gone(ranks, 10s));
}

// Options that a user may set for all hosts in ssh_config(5); hosts_options.cpp disables them. Each
// option that breaks a plain command is tested alone; the last row has all other options together.
// @folder@ is the folder of the test, @busy@ a port that is in use.
class RunHostsSshConfig : public RunHostsSshd, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Options, RunHostsSshConfig,
    testing::Values(
        "RequestTTY force", "RemoteCommand /bin/sh -l", "SessionType none", "SessionType subsystem",
        "StdinNull yes", "ForkAfterAuthentication yes", "Tunnel yes",
        "PermitLocalCommand yes\nLocalCommand touch @folder@/ran; cat; head -c 5000 /dev/zero",
        "LocalForward 127.0.0.1:@busy@ 127.0.0.1:1\nExitOnForwardFailure yes",
        "ControlMaster auto\nControlPath @folder@/mux-%C\nControlPersist 60",
        "ControlMaster autoask\nControlPath @folder@/mux-%C\nControlPersist yes",
        "EscapeChar A\nForwardX11 yes\nForwardX11Trusted yes\nForwardAgent yes\n"
        "VisualHostKey yes\nLogLevel DEBUG3\nSendEnv *\nSetEnv LC_ALL=C\nCompression yes\n"
        "ConnectTimeout 1\nConnectionAttempts 3\nServerAliveInterval 1\nTCPKeepAlive no\n"
        "GatewayPorts yes\nUpdateHostKeys ask\nAddKeysToAgent ask\nCanonicalizeHostname yes"));

TEST_P(RunHostsSshConfig, changes_nothing_for_the_ranks_and_leaves_nothing_behind) {
  const std::string at = directory.path();
  const Fd busy = listen_tcp({"127.0.0.1", 0});
  std::string options = GetParam();
  for (const auto& [name, value] :
       {std::pair<std::string, std::string>("@folder@", at),
        std::pair<std::string, std::string>("@busy@", std::to_string(local_port(busy)))}) {
    for (auto found = options.find(name); found != std::string::npos; found = options.find(name)) {
      options.replace(found, name.size(), value);
    }
  }
  const Outcome outcome =
      run_paceline({"run", "--hosts", "root@127.0.0.1:2", "--ssh-command", ssh_with(options),
                    "--all-ranks", RECORDED_PROGRAM, "ends"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[127.0.0.1:0] waiting\n");
  for (const auto& entry : std::filesystem::directory_iterator(at)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("mux-")) << entry.path();
  }
  EXPECT_FALSE(std::filesystem::exists(at + "/ran"));
}

// The master connection of a user's sessions. It was started before the job, or by ssh itself for a
// jump host.
TEST_F(RunHostsSshd, a_users_shared_connection_outlives_the_job) {
  const std::string shared = fmt::format(
      "ControlMaster auto\nControlPath {}/mux-%h-%p\nControlPersist 60", directory.path());
  const std::string common = fmt::format(
      "Host jump\nHostname 127.0.0.1\nPort {0}\nHost *\nIdentityFile {1}/user\nUser root\n"
      "UserKnownHostsFile {1}/hosts\nStrictHostKeyChecking accept-new\n",
      port, directory.path());
  for (const bool through_jump : {false, true}) {
    SCOPED_TRACE(through_jump);
    const std::string config =
        common + shared + (through_jump ? "\nHost 127.0.0.1\nProxyJump jump" : "");
    const std::string mine = ssh_with(config);
    const std::string target = through_jump ? "jump" : "root@127.0.0.1";
    if (!through_jump) {
      ASSERT_EQ(std::system(fmt::format("{} {} true </dev/null", mine, target).c_str()), 0);
    }
    const Outcome outcome = run_paceline({"run", "--hosts", "root@127.0.0.1:1", "--ssh-command",
                                          mine, "--all-ranks", RECORDED_PROGRAM, "ends"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "[127.0.0.1:0] waiting\n");
    EXPECT_EQ(std::system(fmt::format("{} -O check {}", mine, target).c_str()), 0);
    EXPECT_EQ(std::system(fmt::format("{} -O exit {}", mine, target).c_str()), 0);
  }
}

TEST_F(RunHostsSshd, a_key_that_is_not_accepted_is_said) {
  ASSERT_EQ(
      std::system(
          fmt::format("ssh-keygen -q -t ed25519 -N '' -f {}/other", directory.path()).c_str()),
      0);
  const Outcome outcome =
      run_paceline({"run", "--hosts", "root@127.0.0.1:1", "--ssh-command", ssh("other"), "true"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, AllOf(Says("hosts.unreachable", "host root@127.0.0.1", "ssh",
                                      "ended with exit code 255"),
                                 HasSubstr("Permission denied")));
}

}  // namespace
}  // namespace paceline::launcher
