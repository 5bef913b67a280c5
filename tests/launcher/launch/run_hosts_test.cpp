// `paceline run --hosts` on network namespaces in place of hosts: all hosts are one world and end
// together.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/launcher/process/process.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

using Arguments = std::vector<std::string>;

class RunHosts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts.emplace(2);
  }

  Arguments run(const std::string& list, const Arguments& options, const Arguments& program) {
    Arguments all = {"run", "--hosts", list, "--ssh-command", hosts->ssh()};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), program.begin(), program.end());
    return all;
  }
  Arguments ranks(const std::string& script, const Arguments& options = {"--all-ranks"}) {
    return run(hosts->list(2), options, {"sh", "-c", script});
  }
  // A script that prints a line "[host:rank] ready pid" and continues.
  static std::string ready() { return "echo ready $$; "; }

  // Waits until every rank of `paceline` is ready; returns a pidfd of each.
  static std::vector<Fd> pids_of(PacelineProcess& paceline, int count) {
    std::vector<std::string> pids;
    for (int rank = 0; rank < count; ++rank) {
      const std::string start = fmt::format("[{}:{}] ready ", NetworkHosts::name(rank / 2), rank);
      pids.push_back(paceline.wait_for_lines(start, 1).front());
    }
    return open_pidfds(pids);
  }

  std::optional<NetworkHosts> hosts;
};

TEST_F(RunHosts, ranks_of_all_hosts_are_one_world) {
  const Outcome outcome = run_paceline(run("10.77.0.1:2,10.77.0.2:1", {"--all-ranks"},
                                           {"sh", "-c",
                                            "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                                            "$GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out), UnorderedElementsAre("[10.77.0.1:0] 0/3 0/2 0/2 10.77.0.1",
                                                          "[10.77.0.1:1] 1/3 1/2 0/2 10.77.0.1",
                                                          "[10.77.0.2:2] 2/3 0/1 1/2 10.77.0.1"));
  EXPECT_EQ(outcome.err, "");
}

TEST_F(RunHosts, ranks_form_a_group_across_hosts_and_only_rank_0_is_shown) {
  const Outcome outcome = run_paceline(run(hosts->list(2), {}, {RECORDED_PROGRAM, "ends"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "waiting\n");
}

TEST_F(RunHosts, a_hostfile_says_the_same) {
  const std::string file =
      hosts->directory().write("hosts", "10.77.0.1 slots=1\n10.77.0.2 slots=2 # two\n");
  const Outcome outcome = run_paceline({"run", "--hostfile", file, "--ssh-command", hosts->ssh(),
                                        "--all-ranks", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[10.77.0.1:0] 0", "[10.77.0.2:1] 1", "[10.77.0.2:2] 2"));
}

TEST_F(RunHosts, this_machine_needs_no_ssh) {
  const Outcome outcome =
      run_paceline({"run", "--hosts", "10.77.0.254:2", "--all-ranks", "sh", "-c", "echo $RANK"},
                   {{"PATH", "/usr/bin:/bin"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[10.77.0.254:0] 0", "[10.77.0.254:1] 1"));
}

// The launcher's own machine takes part. The job meets at the address that this machine has in the
// direction of the other host.
TEST_F(RunHosts, this_machine_and_another_meet_at_an_address_that_both_reach) {
  const Outcome outcome = run_paceline(
      {"run", "--hosts", "localhost:1,10.77.0.2:1", "--ssh-command",
       hosts->ssh_after("[ $1 = localhost ] && exec sh -c \"$2\""), RECORDED_PROGRAM, "ends"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "waiting\n");
}

TEST_F(RunHosts, arguments_variables_and_directory_arrive_byte_for_byte) {
  const FreshDirectory directory;
  const std::string folder = directory.file("a b'$(touch x)");
  std::filesystem::create_directory(folder);
  const std::string odd = "it's $HOME `id`;\n\"\\ \xff *";
  Arguments arguments =
      run(hosts->list(1), {"--export", "ODD"},
          {"sh", "-c", "printf '%s|%s|%s|%s' \"$1\" \"$ODD\" \"$PWD\" \"$OMP_X\"", "sh", odd});
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  const Outcome outcome = run_paceline(arguments, {{"ODD", odd}, {"OMP_X", "5"}});
  std::filesystem::current_path(before);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, odd + "|" + odd + "|" + folder + "|5");
}

TEST_F(RunHosts, variables_that_were_not_asked_for_stay_here) {
  const Outcome outcome =
      run_paceline(run(hosts->list(1), {}, {"sh", "-c", "echo \"[$OTHER$PET_TEE$PACELINE_X]\""}),
                   {{"OTHER", "1"}, {"PET_TEE", "3"}, {"PACELINE_X", "y"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("[y]"));
  EXPECT_THAT(outcome.out, HasSubstr("[10.77.0.2:1] "));  // PET_TEE took effect, as an option
}

// No command line and no environment of any process contains the secret.
TEST_F(RunHosts, the_secret_is_on_no_command_line_and_in_no_environment) {
  PacelineProcess paceline(
      ranks("echo \"secret $(cat /proc/$$/fd/$PACELINE_SECRET_FD)\"; exec sleep 60"));
  const std::string secret =
      paceline.wait_for_lines("[10.77.0.2:2] secret ", 1).front().substr(0, 64);
  ASSERT_EQ(secret.size(), 64U);
  int looked_at = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    for (const char* name : {"cmdline", "environ"}) {
      std::ostringstream read;  // reads nothing if the process has just ended
      read << std::ifstream(entry.path() / name, std::ios::binary).rdbuf();
      const std::string text = read.str();
      looked_at += text.empty() ? 0 : 1;
      EXPECT_EQ(text.find(secret), std::string::npos) << entry.path() << " " << name;
    }
  }
  EXPECT_GT(looked_at, 10);
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 128 + SIGTERM);
}

TEST_F(RunHosts, the_first_rank_that_fails_gives_the_exit_code_and_all_hosts_are_stopped) {
  PacelineProcess paceline(
      ranks(ready() + "read line < " + hosts->directory().write("go", "") +
            "; if [ $RANK = 3 ]; then until [ -s " + hosts->directory().file("go") +
            " ]; do sleep 0.02; done; echo why >&2; exit 7; fi; exec sleep 60"));
  const auto pids = pids_of(paceline, 4);
  hosts->directory().write("go", "x\n");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("[10.77.0.2:3] why"));
  EXPECT_THAT(outcome.err, Says("run.first_failure", 3, "exit code 7"));
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure", 0)));
  EXPECT_TRUE(all_gone(pids, 5s));
}

TEST_F(RunHosts, a_signal_reaches_every_host_and_leaves_nothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    PacelineProcess paceline(
        ranks("trap 'echo bye; exit 0' INT TERM HUP; " + ready() + "while :; do sleep 0.02; done"));
    const auto pids = pids_of(paceline, 4);
    paceline.send(signal);
    const Outcome outcome = paceline.wait();
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(outcome.out,
                  HasSubstr(fmt::format("[{}:{}] bye", NetworkHosts::name(rank / 2), rank)));
    }
    EXPECT_TRUE(all_gone(pids, 5s));
  }
}

TEST_F(RunHosts, a_user_signal_is_passed_on_and_stops_no_rank) {
  PacelineProcess paceline(
      ranks("trap 'echo caught; exit 0' USR1; " + ready() + "while :; do sleep 0.02; done"));
  pids_of(paceline, 4);
  paceline.send(SIGUSR1);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'h'), 4);  // one h in each "caught"
}

TEST_F(RunHosts, an_agreed_stop_of_all_hosts_is_not_a_failure) {
  PacelineProcess paceline(
      ranks("trap 'sleep 0.$RANK; exit 85' USR1; " + ready() + "while :; do sleep 0.02; done"));
  pids_of(paceline, 4);
  paceline.send(SIGUSR1);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 85);
  EXPECT_THAT(outcome.err, Not(Says("run.first_failure")));
}

TEST_F(RunHosts, ranks_that_ignore_signals_are_killed_everywhere) {
  PacelineProcess paceline(ranks("trap '' TERM; " + ready() + "while :; do sleep 1; done",
                                 {"--all-ranks", "--shutdown-timeout", "0.5"}));
  const auto pids = pids_of(paceline, 4);
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(all_gone(pids, 5s));
}

TEST_F(RunHosts, nothing_survives_a_launcher_that_is_killed) {
  PacelineProcess paceline(ranks("trap '' TERM HUP; " + ready() + "while :; do sleep 1; done"));
  const auto pids = pids_of(paceline, 4);
  paceline.send(SIGKILL);
  EXPECT_TRUE(all_gone(pids, 10s));  // it takes 0.1 s on an idle machine
}

TEST_F(RunHosts, rank_0_reads_the_launchers_input_whatever_its_size) {
  const std::string megabytes(3'000'000, 'x');
  const std::string file = hosts->directory().write("input", megabytes);
  Arguments arguments = run(hosts->list(1), {}, {"sh", "-c", "wc -c"});
  const std::string command = fmt::format("exec \"$0\" \"$@\" < {}", file);
  arguments.insert(arguments.begin(), {"-c", command, PACELINE_COMMAND});
  PacelineProcess from_file(arguments, {}, "/bin/sh");
  EXPECT_EQ(from_file.wait().out, "3000000\n");
  for (const std::string& list : {hosts->list(1), NetworkHosts::name(0) + ":1"}) {
    PacelineProcess from_pipe(run(list, {}, {"sh", "-c", "wc -c"}));
    from_pipe.write_stdin("hello");
    const Outcome outcome = from_pipe.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "5\n");
  }
}

TEST_F(RunHosts, input_that_rank_0_does_not_read_holds_no_signal_up) {
  Arguments arguments = ranks(ready() + "exec sleep 60");
  const std::string command = "yes | \"$0\" \"$@\" & echo launcher $!; wait $!";
  arguments.insert(arguments.begin(), {"-c", command, PACELINE_COMMAND});
  PacelineProcess shell(arguments, {}, "/bin/sh");
  const auto pids = pids_of(shell, 4);
  const pid_t launcher = std::stoi(shell.wait_for_lines("launcher ", 1).front());
  kill(launcher, SIGTERM);
  EXPECT_EQ(shell.wait().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(all_gone(pids, 5s));
}

TEST_F(RunHosts, several_jobs_at_once_share_hosts_without_meeting) {
  std::vector<std::unique_ptr<PacelineProcess>> jobs;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(
        std::make_unique<PacelineProcess>(run(hosts->list(1), {}, {RECORDED_PROGRAM, "ends"})));
  }
  for (const auto& job : jobs) {
    const Outcome outcome = job->wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
}

TEST_F(RunHosts, a_lot_of_output_arrives_whole_in_whole_lines) {
  const Outcome outcome = run_paceline(ranks("seq 20000"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  auto lines = lines_of(outcome.out);
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  EXPECT_EQ(lines.size(), 80'000U);
  for (const std::string& line : lines) ASSERT_TRUE(line.starts_with("[10.77.0.")) << line;
}

TEST_F(RunHosts, a_dry_run_shows_each_host_and_starts_nothing) {
  const Outcome outcome = run_paceline(
      run(hosts->list(2), {"--dry-run", "--tee", "3"}, {"touch", hosts->directory().file("x")}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("dry_run.hosts", 2, 4));
  EXPECT_THAT(outcome.out, HasSubstr("host 10.77.0.2: " + hosts->ssh() + " 10.77.0.2 'exec "));
  EXPECT_THAT(outcome.out, HasSubstr("--tee=3"));
  EXPECT_THAT(outcome.out, HasSubstr("--node-rank=1 --nproc-per-node=2 -- touch"));
  const std::string last = outcome.out.substr(outcome.out.find("  rank 3: "));
  for (const char* line :
       {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
        "GROUP_WORLD_SIZE=2", "MASTER_ADDR=10.77.0.1", "PACELINE_STORE=(known at the start)"}) {
    EXPECT_THAT(last, HasSubstr(std::string("    ") + line + "\n"));
  }
  EXPECT_FALSE(std::filesystem::exists(hosts->directory().file("x")));
  const Outcome config = run_paceline(run(hosts->list(2), {"--print-config"}, {"true"}));
  for (const char* line :
       {"--nnodes +2 +flag --hosts", "--node-rank +0 to 1 +flag --hosts",
        "--master-addr +10.77.0.1 +flag --hosts", "--master-port +a free one +default"}) {
    EXPECT_THAT(config.out, testing::ContainsRegex(line));
  }
}

}  // namespace
}  // namespace paceline::launcher
