// Everything that `paceline run` refuses before it starts any process, and the messages.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using harness::SaysMatcher;
using testing::HasSubstr;
using testing::Not;

struct UsageRefusal {
  std::vector<std::string> options;
  testing::Matcher<const std::string&> message;
};

class RunRefuses : public testing::TestWithParam<UsageRefusal> {};

TEST_P(RunRefuses, with_exit_code_2_before_anything_starts) {
  const FreshDirectory directory;
  std::vector<std::string> arguments = GetParam().options;
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), {"touch", directory.file("started")});
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, GetParam().message);
  EXPECT_EQ(outcome.out, "");
  EXPECT_LT(outcome.seconds.count(), 10.0);  // it takes 10 ms on an idle machine
  EXPECT_FALSE(std::filesystem::exists(directory.file("started")));
}

INSTANTIATE_TEST_SUITE_P(
    Options, RunRefuses,
    testing::ValuesIn(std::vector<UsageRefusal>{
        {{"--nproc-per-node", "0"}, Says("cli.not_whole", "--nproc-per-node", 0, 1)},
        {{"--nproc-per-node", "-1"}, Says("cli.not_whole", "--nproc-per-node", -1)},
        {{"--nproc-per-node", "abc"}, Says("cli.not_whole", "--nproc-per-node", "abc")},
        {{"--nproc-per-node", "1e9"}, Says("cli.not_whole", "--nproc-per-node", "1e9")},
        {{"--nproc-per-node", "2147483648"},
         Says("cli.not_whole", "--nproc-per-node", "2147483648")},
        {{"--nproc-per-node", "99999999999999999999"},
         Says("cli.not_whole", "--nproc-per-node", "99999999999999999999")},
        {{"--nproc-per-node", ""}, Says("cli.value_empty", "--nproc-per-node")},
        {{"--nproc-per-node="}, Says("cli.value_empty", "--nproc-per-node")},
        {{"--nproc-per-node", " 2"}, Says("cli.not_whole", "--nproc-per-node", " 2")},
        {{"--nproc-per-node", "gpu"}, Says("usage.no_gpu", "--nproc-per-node", "gpu")},
        {{"--nproc-per-node", "xpu"}, Says("usage.nvidia_only", "--nproc-per-node", "xpu")},
        {{"--hang-timeout", "0", "--hang-action", "kill"},
         Says("usage.nothing_watched", "--hang-action", "--hang-timeout")},
        {{"--rdzv-conf", "join_timeout=abc"},
         Says("cli.not_seconds", "--rdzv-conf", "join_timeout=abc")},
        {{"--rdzv-id", "a\033[31mb\nc"},
         Says("usage.not_a_name", "--rdzv-id", "a\\x1b[31mb\\x0ac")},
        {{"--roles", "trainer"}, Says("roles.no_count", "--roles", "trainer")},
        {{"--roles", "trainer=0"}, Says("roles.count_out_of_range", "--roles", "trainer=0")},
        {{"--roles", "a=1,a=2"}, Says("roles.given_twice", "--roles", "a")},
        {{"--roles", "a=1, b=2"}, Says("roles.bad_name", "--roles", " b")},
        {{"--roles", "a=12,a1=2"}, Says("roles.ends_with_digit", "--roles", "a1")},
        {{"--roles", ""}, Says("cli.value_empty", "--roles")},
        {{"--roles", "a=2,b=1", "--nproc-per-node", "2"},
         Says("roles.other_count", "--roles", "a=2,b=1", "3 ranks", "2 are")},
        {{"--roles", "a=2", "--nproc-per-node", "1"},
         Says("roles.other_count", "--roles", "a=2", "2 ranks", "1 is")},
        {{"--roles", "a=5000"}, Says("roles.too_many_ranks", "--roles", "a=5000", "5000 ranks")},
        {{"--roles", "a=2,b=1", "--nnodes", "2", "--rdzv-endpoint", "h"},
         Says("roles.not_even", "--roles", "a=2,b=1", "3 ranks", "2 nodes")},
        {{"--roles", "a=2", "--nnodes", "1:2", "--rdzv-endpoint", "h"},
         Says("roles.nodes_not_fixed", "--roles", "a=2", "--nnodes", "1:2")},
        {{"--roles", "a=2", "--role", "b"}, Says("cli.exclude_each_other", "--roles", "--role")},
        {{"--roles", "a=2", "--hosts", "h,i:2"},
         Says("roles.other_count", "--roles", "a=2", "2 ranks", "3 are")},
        {{"--until", "a"}, Says("roles.until_without_roles", "--until", "a")},
        {{"--roles", "a=2", "--until", "b"}, Says("roles.unknown", "--until", "b")},
        {{"--rdzv-id", "a\tb"}, Says("usage.not_a_name", "--rdzv-id", "a\\x09b")},
        {{"--nnodes", "0"}, Says("cli.not_whole", "--nnodes", 0)},
        {{"--nnodes", "2:1"}, Says("usage.min_above_max", "--nnodes", "2:1")},
        {{"--hosts", "a,b", "--nnodes", "2:1"}, Says("usage.min_above_max", "--nnodes", "2:1")},
        {{"-n", "2"}, Says("cli.option_meant", "-n", "--nproc-per-node")},
        {{"-np", "2"}, Says("cli.option_meant", "-np", "--nproc-per-node")},
        {{"-nproc-per-node=2"}, Says("cli.option_meant", "-nproc-per-node", "--nproc-per-node")},
        {{"-log-dir", "x"}, Says("cli.option_meant", "-log-dir", "--log-dir")},
        {{"-q"}, Says("cli.unknown_option", "-q\n")},
        {{"--nnodes", "1:"}, Says("usage.not_nodes", "--nnodes", "1:")},
        {{"--nnodes", "a:b"}, Says("usage.not_nodes", "--nnodes", "a:b")},
        {{"--node-rank", "7"}, Says("cli.not_whole", "--node-rank", 7, 0, 0)},
        {{"--nnodes", "2", "--node-rank", "2"}, Says("cli.not_whole", "--node-rank", 2, 0, 1)},
        {{"--nnodes", "2", "--standalone"}, Says("usage.standalone_on_several", "--nnodes", 2)},
        {{"--nnodes", "2", "--rdzv-endpoint", "localhost"}, Says("usage.secret_missing", 2)},
        {{"--nnodes", "2"}, Says("usage.no_meeting_place", "--nnodes", 2, 29400)},
        {{"--nnodes", "1:2", "--node-rank", "1"},
         Says("usage.no_meeting_place", "--nnodes", "1:2")},
        {{"--nnodes", "2", "--rdzv-endpoint", "fe80::1"},
         Says("usage.ipv6_without_brackets", "--rdzv-endpoint", "fe80::1")},
        {{"--nnodes", "2", "--rdzv-endpoint", "0.0.0.0:29400"},
         Says("usage.any_address", "--rdzv-endpoint", "0.0.0.0")},
        {{"--nnodes", "2", "--rdzv-endpoint", "head :29400"},
         Says("usage.not_an_address", "--rdzv-endpoint", "head ")},
        {{"--nnodes", "2", "--master-addr", "head:29400"},
         Says("usage.not_an_address", "--master-addr", "head:29400")},
        {{"--hosts", "a,-oProxyCommand=x"},
         Says("hosts.not_a_host", "--hosts", "-oProxyCommand=x")},
        {{"--hosts", "a:0"}, Says("hosts.bad_count", "--hosts", "slots", 0)},
        {{"--hosts", "a,b,a"}, Says("hosts.listed_twice", "--hosts", "a")},
        {{"--hostfile", "/nowhere/hosts"},
         Says("hosts.file_not_opened", "/nowhere/hosts", "No such file")},
        {{"--hosts", "a", "--hostfile", "x"},
         Says("cli.exclude_each_other", "--hosts", "--hostfile")},
        {{"--hosts", "a,b", "--node-rank", "1"}, Says("hosts.option_excluded", "--node-rank")},
        {{"--hosts", "a,b", "--standalone"}, Says("hosts.option_excluded", "--standalone")},
        {{"--hosts", "a,b", "--nnodes", "3"}, Says("hosts.other_number", "--nnodes", 3, "2 hosts")},
        {{"--hosts", "a,b", "--nnodes", "1:3"},
         Says("hosts.other_number", "--nnodes", "1:3", "2 hosts")},
        {{"--hosts", "a,b", "--nnodes", "0:2"}, Says("cli.not_whole", "--nnodes", 0)},
        {{"--hosts", "a,b", "--rdzv-conf", "is_host=true"},
         Says("hosts.is_host_is_set", "--rdzv-conf")},
        {{"--hosts", "a,b", "--rdzv-endpoint", "a"},
         Says("hosts.option_excluded", "--rdzv-endpoint")},
        {{"--hosts", "a:2", "--nproc-per-node", "3"},
         Says("hosts.too_few_slots", "--nproc-per-node", 3, "a", 2)},
        {{"--hosts", "a", "--nproc-per-node", "auto"},
         Says("hosts.slots_unknown", "--nproc-per-node", "auto", "a")},
        {{"--hosts", "a", "--export", "A B"}, Says("hosts.not_a_variable", "--export", "A B")},
        {{"--hosts", "a", "--export", "NO_SUCH_VARIABLE"},
         Says("hosts.variable_unset", "--export", "NO_SUCH_VARIABLE")},
        {{"--hosts", "a", "--ssh-command", "ssh;x"},
         Says("cli.no_shell_reads", "--ssh-command", "ssh;x")},
        {{"--hosts", "a", "--start-timeout", "x"}, Says("cli.not_seconds", "--start-timeout", "x")},
        {{"--hosts", "a", "--tee", "4"}, Says("usage.not_streams", "--tee", 4)},
        {{"--hosts", "a,b", "--timeline", "/nowhere/x"},
         Says("usage.no_folder", "--timeline", "/nowhere/x")},
        {{"--export", "PATH"}, Says("hosts.option_alone", "--export")},
        {{"--ssh-command", "ssh"}, Says("hosts.option_alone", "--ssh-command")},
        {{"--host-retries", "2"}, Says("hosts.option_alone", "--host-retries")},
        {{"--hosts", "a,b", "--host-retries", "x"}, Says("cli.not_whole", "--host-retries", "x")},
        {{"--master-port", "-5"}, Says("cli.not_whole", "--master-port", -5)},
        {{"--master-port", "65536"}, Says("cli.not_whole", "--master-port", 65536, 1)},
        {{"--master-port", "29500x"}, Says("cli.not_whole", "--master-port", "29500x")},
        {{"--bind", "l3"}, Says("usage.not_a_binding", "--bind", "l3")},
        {{"--bind", "map:0;"}, Says("usage.not_a_binding", "--bind", "map:0;")},
        {{"--bind", "map:0;0"}, Says("usage.map_of_other_size", "2 sets", "1 rank")},
        {{"--bind", "map:60000"}, Says("usage.cpu_not_given", 60000)},
        {{"--numa-binding", "gpu"}, Says("usage.not_numa_binding", "--numa-binding", "gpu")},
        {{"--numa-binding", "node", "--bind", "core"},
         Says("cli.exclude_each_other", "--bind", "--numa-binding")},
        {{"--threads-per-rank", "0"}, Says("cli.not_whole", "--threads-per-rank", 0)},
        {{"--backend", "glo"}, Says("usage.unknown_backend", "--backend", "glo", "glo")},
        {{"--backend", "cpu:gloo,cpu:mpi"}, Says("usage.device_twice", "cpu:gloo,cpu:mpi", "cpu")},
        {{"--backend", "mpi"}, Says("usage.mpi_starts_itself", "--backend")},
        {{"--shutdown-timeout", "-1"}, Says("cli.not_seconds", "--shutdown-timeout", -1)},
        {{"--shutdown-timeout", "nan"}, Says("cli.not_seconds", "--shutdown-timeout", "nan")},
        {{"--tee", "4"}, Says("usage.not_streams", "--tee", 4)},
        {{"--tee", "3:1"}, Says("cli.not_whole", "--tee", 3, 0, 0)},
        {{"--local-ranks-filter", "1"}, Says("cli.not_whole", "--local-ranks-filter", 1)},
        {{"--nproc-per-nod", "2"}, Says("cli.option_meant", "--nproc-per-nod", "--nproc-per-node")},
        {{"--nprco_per_node=2"}, Says("cli.option_meant", "--nprco-per-node", "--nproc-per-node")},
        {{"--zzz"}, Says("cli.option_of_program", "--zzz", "--zzz")},
        {{"--max-restarts", "-1"}, Says("cli.not_whole", "--max-restarts", -1)},
        {{"--chaos", "burn"}, Says("chaos.not_a_fault", "burn", "burn")},
        {{"--restart-window", "x"}, Says("cli.not_seconds", "--restart-window", "x")},
        {{"--monitor-interval", "x"}, Says("cli.not_seconds", "--monitor-interval", "x")},
        {{"--rdzv-backend", "etcd-v2"}, Says("usage.no_etcd", "--rdzv-backend", "etcd-v2")},
        {{"--rdzv-backend", "x"}, Says("usage.not_rdzv_backend", "--rdzv-backend", "x")},
        {{"--rdzv-conf", "join_timeout"}, Says("cli.not_seconds", "--rdzv-conf", "join_timeout=")},
        {{"--rdzv-conf", "colour=red"}, Says("usage.not_rdzv_conf", "--rdzv-conf", "colour=red")},
        {{"--nnodes", "2", "--rdzv-endpoint", "h:x"},
         Says("usage.not_an_endpoint", "--rdzv-endpoint", "h:x")},
        UsageRefusal{
            {"--nnodes", "2", "--rdzv-endpoint", "h", "--master-addr", "h"},
            Says("cli.exclude_each_other", "--rdzv-endpoint", "--master-addr or --master-port")},
        {{"--rdzv-conf", "keep_alive_interval=0"},
         Says("usage.not_above_0", "--rdzv-conf", "keep_alive_interval=0")},
        {{"--rdzv-conf", "keep_alive_max_attempt=0"},
         Says("cli.not_whole", "--rdzv-conf", "keep_alive_max_attempt=0")},
        {{"--rdzv-conf", "is_host=maybe"},
         Says("usage.not_is_host", "--rdzv-conf", "is_host=maybe")},
        {{"--nnodes", "2", "--rdzv-endpoint", "h:0"},
         Says("usage.not_an_endpoint", "--rdzv-endpoint", "h:0", 1)},
        {{"--rdzv-endpoint", "h:x"}, Says("usage.not_an_endpoint", "--rdzv-endpoint", "h:x")},
        {{"--nnodes", "2", "--rdzv-endpoint", "h:65536"},
         Says("usage.not_an_endpoint", "--rdzv-endpoint", "h:65536")},
        {{"--nnodes", "70000"}, Says("cli.not_whole", "--nnodes", 70000, 1, 65536)},
        {{"--node-rank", "x"}, Says("cli.not_whole", "--node-rank", "x")},
        {{"--start-timeout", "5"}, Says("hosts.option_alone", "--start-timeout")},
        {{"--hosts", "a", "--start-timeout", "-1"}, Says("cli.not_seconds", "--start-timeout", -1)},
        {{"--max-restarts", "1000001"}, Says("cli.not_whole", "--max-restarts", 1000001)},
        {{"--restart-window", "-1"}, Says("cli.not_seconds", "--restart-window", -1)},
        {{"--threads-per-rank", "5000"}, Says("cli.not_whole", "--threads-per-rank", 5000)},
        {{"--straggler-after", "x"}, Says("cli.not_seconds", "--straggler-after", "x")},
        {{"--chaos-seed", "-1"}, Says("cli.not_whole", "--chaos-seed", -1, 0)},
        {{"--chaos", "kill:rank=2@1s", "--nproc-per-node", "2"},
         Says("chaos.no_such_rank", "--chaos", 2, 1)},
        {{"--chaos", "kill:every=0s"}, Says("chaos.not_seconds", "kill:every=0s", 0)},
        {{"--timeline", "/nowhere/x"}, Says("usage.no_folder", "--timeline", "/nowhere/x")},
        {{"--config", "/nowhere/x"}, HasSubstr("/nowhere/x: No such file")},
        {{"--master-addr="}, Says("cli.value_empty", "--master-addr")},
        {{"--rdzv-id="}, Says("cli.value_empty", "--rdzv-id")},
        {{"--logs-specs", "x"}, Says("cli.option_of_torchrun", "--logs-specs")},
        {{"--redirects", "4"}, Says("usage.not_streams", "--redirects", 4)},
        {{"-r", "1:3"}, Says("cli.not_whole", "--redirects", 1, 0, 0)},
        {{"--standalone=maybe"}, Says("cli.not_a_flag", "--standalone", "maybe")},
        {{"--standalone="}, Says("cli.not_a_flag", "--standalone", "")}}));

TEST(RunUsage, a_hostfile_with_a_command_or_an_option_in_place_of_a_name_runs_nothing) {
  const FreshDirectory directory;
  const std::string touched = directory.file("touched");
  const std::vector<std::string> names = {"a;touch " + touched,
                                          "$(touch " + touched + ")",
                                          "`touch " + touched + "`",
                                          "-oProxyCommand=touch " + touched,
                                          "--help",
                                          "a\nb|touch " + touched};
  for (const std::string& host : names) {
    const std::string file = directory.write("hosts", host + "\n");
    const Outcome outcome = run_paceline({"run", "--hostfile", file, "touch", touched});
    EXPECT_EQ(outcome.exit_code, 2) << host << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(file + ", line ")) << host;
    EXPECT_FALSE(std::filesystem::exists(touched)) << host;
  }
}

TEST(RunUsage, options_of_torchrun_that_are_not_needed_are_accepted) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--monitor_interval", "0.1"},
        {"--rdzv-backend", "c10d"},
        {"--rdzv_conf", "close_timeout=3,read_timeout=60,store_type=tcp"},
        {"--standalone"},
        {"--nproc_per_node", "auto"},
        {"--nproc-per-node=cores"},
        {"--nproc-per-node", "cpu"}}) {
    std::vector<std::string> arguments = options;
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"sh", "-c", "[ $WORLD_SIZE -ge 1 ] && echo here"});
    const Outcome outcome = run_paceline(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << options[0] << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "here\n") << options[0];
  }
}

TEST(RunUsage, of_options_given_twice_the_last_one_counts) {
  const Outcome value = run_paceline({"run", "--nproc-per-node", "x", "--tee=0", "--nproc_per_node",
                                      "1", "-t", "3", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(value.exit_code, 0) << value.err;
  EXPECT_EQ(value.out, "[0] 1\n");
  for (const auto& [last, shown] :
       std::map<std::string, std::string>{{"--all-ranks=false", "2\n"},
                                          {"--all-ranks", "[0] 2\n[1] 2\n"},
                                          {"--all-ranks=True", "[0] 2\n[1] 2\n"}}) {
    const Outcome flag = run_paceline({"run", "--nproc-per-node=2", "--all-ranks", last, "sh", "-c",
                                       "[ $RANK = 0 ] || sleep 0.3; echo $WORLD_SIZE"},
                                      {{"PET_ALL_RANKS", "1"}});
    EXPECT_EQ(flag.exit_code, 0) << flag.err;
    EXPECT_EQ(flag.out, shown) << last;
  }
}

TEST(RunUsage, a_missing_program_or_value_is_named) {
  EXPECT_THAT(run_paceline({"run"}).err, Says("cli.no_program", "paceline run"));
  EXPECT_THAT(run_paceline({"run", "--"}).err, Says("cli.no_program", "paceline run"));
  EXPECT_THAT(run_paceline({"run", "--nnodes"}).err, Says("cli.needs_value", "--nnodes"));
  EXPECT_THAT(run_paceline({"rnu"}).err, Says("cli.command_meant", "rnu", "run"));
}

TEST(RunUsage, logical_shards_must_fit_the_ranks_and_fix_the_threads) {
  const Outcome refused =
      run_paceline({"run", "--nproc-per-node", "3", "--logical-shards", "8", "true"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, Says("usage.shards_not_divisible", 8, 3, "1, 2, 4 or 8"));
  const Outcome outcome = run_paceline({"run", "--logical-shards", "8", "sh", "-c",
                                        "echo $PACELINE_LOGICAL_SHARDS $OMP_NUM_THREADS"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "8 1\n");
}

TEST(RunUsage, a_damaged_state_restarts_the_job_or_ends_it) {
  const std::vector<std::string> damaged = {"sh", "-c",
                                            "echo generation $TORCHELASTIC_RESTART_COUNT; exit "
                                            "$((86 - 86 * $TORCHELASTIC_RESTART_COUNT))"};
  const auto run = [&](const std::string& action) {
    std::vector<std::string> arguments = {"run", "--max-restarts", "3", "--on-damage", action};
    arguments.insert(arguments.end(), damaged.begin(), damaged.end());
    return run_paceline(arguments);
  };
  const Outcome restarted = run("restart");
  EXPECT_EQ(restarted.exit_code, 0) << restarted.err;
  EXPECT_EQ(restarted.out, "generation 0\ngeneration 1\n");
  const Outcome ended = run("stop");
  EXPECT_EQ(ended.exit_code, 86);
  EXPECT_EQ(ended.out, "generation 0\n");
  EXPECT_THAT(ended.err, Says("run.damaged"));
}

TEST(Usage, an_unknown_command_or_option_is_answered_with_what_may_have_been_meant) {
  for (const auto& [typed, answer] : std::vector<std::pair<std::string, SaysMatcher>>{
           {"--verison", Says("cli.option_meant", "--verison", "--version")},
           {"version", Says("cli.command_meant", "version", "--version")},
           {"--nproc-per-node", Says("cli.option_before_command", "--nproc-per-node")},
           {"./train", Says("cli.command_is_a_program", "./train", "./train")}}) {
    const Outcome outcome = run_paceline({typed});
    EXPECT_EQ(outcome.exit_code, 2) << typed;
    EXPECT_THAT(outcome.err, answer);
  }
}

TEST(Usage, help_of_a_command_is_that_commands) {
  const std::string own = run_paceline({"run", "--help"}).out;
  ASSERT_THAT(own, HasSubstr("Usage: paceline run"));
  for (const char* help : {"help", "--help", "-h"}) {
    const Outcome outcome = run_paceline({help, "run"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, own) << help;
  }
  EXPECT_THAT(run_paceline({"help", "rnu"}).err, Says("cli.command_meant", "rnu", "run"));
  EXPECT_EQ(run_paceline({"help", "help"}).out, run_paceline({"help"}).out);
}

TEST(RunUsage, options_behind_the_program_are_its_own_and_noted_where_one_rank_starts) {
  const Outcome alone =
      run_paceline({"run", "sh", "-c", "echo $WORLD_SIZE $1", "sh", "--nproc_per_node", "2"});
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_EQ(alone.out, "1 --nproc_per_node\n");
  EXPECT_THAT(alone.err,
              Says("usage.one_rank_starts", "--nproc_per_node", "sh", "--nproc_per_node", "sh\n"));
  for (const std::vector<std::string>& asked :
       {std::vector<std::string>{"--nproc-per-node", "1"}, {"--nnodes", "1"}}) {
    std::vector<std::string> arguments = {"run"};
    arguments.insert(arguments.end(), asked.begin(), asked.end());
    arguments.insert(arguments.end(), {"true", "--nproc-per-node", "2", "--log-dir", "x"});
    EXPECT_THAT(run_paceline(arguments).err, Not(Says("usage.options_behind_program"))) << asked[0];
  }
  EXPECT_THAT(run_paceline({"run", "true", "--", "--nnodes", "2"}).err,
              Not(Says("usage.options_behind_program")));
}

TEST(RunUsage, options_behind_a_program_that_fails_are_noted) {
  const auto run = [&](std::vector<std::string> front, const std::vector<std::string>& behind,
                       const std::string& script) {
    front.insert(front.begin(), "run");
    front.insert(front.end(), {"sh", "-c", script, "sh"});
    front.insert(front.end(), behind.begin(), behind.end());
    return run_paceline(front);
  };
  const Outcome failed = run({}, {"--log-dir", "x", "--max-restarts=2"}, "exit 2");
  EXPECT_EQ(failed.exit_code, 2);
  EXPECT_THAT(failed.err,
              Says("usage.options_behind_program", "--log-dir, --max-restarts", "", "sh", "them"));
  EXPECT_THAT(run({"--max-restarts", "0"}, {"--max-restarts", "2"}, "exit 2").err,
              Not(Says("usage.options_behind_program")));
  EXPECT_THAT(run({}, {"--log-dir", "x"}, "exit 0").err, Not(Says("usage.options_behind_program")));
  EXPECT_THAT(run({}, {"--log-dir", "x"}, "kill -9 $$").err,
              Not(Says("usage.options_behind_program")));
  EXPECT_THAT(run({}, {"--epochs", "3"}, "exit 2").err, Not(Says("usage.options_behind_program")));
}

TEST(RunUsage, a_bad_variable_is_named_and_the_command_line_wins) {
  const Outcome bad = run_paceline({"run", "true"}, {{"PET_NPROC_PER_NODE", "x"}});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, Says("cli.not_whole", "PET_NPROC_PER_NODE", "x"));
  const Outcome good = run_paceline({"run", "--nproc_per_node=1", "sh", "-c", "echo $WORLD_SIZE"},
                                    {{"PET_NPROC_PER_NODE", "x"}});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out, "1\n");
}

TEST(RunUsage, a_variable_that_is_not_an_option_is_named_with_the_one_that_was_meant) {
  const Outcome typo =
      run_paceline({"run", "true"},
                   {{"PET_NPROC_PER_NDOE", "2"}, {"PET_START_METHOD", "spawn"}, {"PET_X", "1"}});
  EXPECT_EQ(typo.exit_code, 0) << typo.err;
  EXPECT_THAT(typo.err, Says("usage.variable_meant", "PET_NPROC_PER_NDOE", "PET_NPROC_PER_NODE"));
  EXPECT_THAT(typo.err, Says("usage.variable_without_option", "PET_X"));
  EXPECT_THAT(typo.err, Not(HasSubstr("PET_START_METHOD")));
}

TEST(RunUsage, ignored_options_of_torchrun_are_reported_where_it_matters) {
  const Outcome outcome =
      run_paceline({"run", "--no-python", "sh", "-c", "echo $0"}, {{"PET_LOCAL_ADDR", "10.0.0.1"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "sh\n");
  EXPECT_THAT(outcome.err, Says("usage.variable_without_effect", "PET_LOCAL_ADDR"));
}

TEST(RunUsage, one_node_may_be_given_the_endpoint_that_torchruns_users_write) {
  const Outcome outcome =
      run_paceline({"run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "echo", "here"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "here\n");
}

TEST(RunUsage, a_backend_that_only_programs_with_tensors_have_is_passed_to_them) {
  for (const char* name : {"c10d", "cpu:c10d,cuda:nccl"}) {
    const Outcome outcome =
        run_paceline({"run", "--backend", name, "sh", "-c", "echo $PACELINE_BACKEND"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, std::string(name) + "\n");
  }
}

TEST(RunUsage, a_variable_of_a_flag_is_true_or_false) {
  for (const char* value : {"maybe", "2", "-1", "truee"}) {
    const Outcome bad = run_paceline({"run", "true"}, {{"PET_ALL_RANKS", value}});
    EXPECT_EQ(bad.exit_code, 2) << value;
    EXPECT_THAT(bad.err, Says("cli.not_a_flag", "PET_ALL_RANKS", value));
  }
  for (const char* value : {"1", "True", "yes", "on", "0", "false", "NO", "off"}) {
    const Outcome good = run_paceline({"run", "true"}, {{"PET_ALL_RANKS", value}});
    EXPECT_EQ(good.exit_code, 0) << value << ": " << good.err;
  }
}

TEST(RunUsage, a_program_that_cannot_start_is_126_or_127_at_once) {
  const FreshDirectory directory;
  const std::string script = directory.file("script.py");
  std::ofstream(script) << "print(1)\n";
  const Outcome missing = run_paceline({"run", "--nproc-per-node", "2", "./no-such-program"});
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_THAT(missing.err, Says("program.missing", "./no-such-program"));
  EXPECT_EQ(run_paceline({"run", "no-such-program"}).exit_code, 127);
  EXPECT_EQ(run_paceline({"run", ""}).exit_code, 127);
  chmod(script.c_str(), 0755);  // the script has no #! line
  const Outcome no_interpreter = run_paceline({"run", "--nproc-per-node", "2", script});
  EXPECT_EQ(no_interpreter.exit_code, 126);
  EXPECT_THAT(no_interpreter.err, Says("program.cannot_execute", script, "Exec format error"));
}

TEST(RunUsage, a_script_or_a_module_of_python_is_run_by_the_interpreter) {
  const FreshDirectory directory;
  const std::string script = directory.file("script.py");
  std::ofstream(script) << "import sys; print('arguments', sys.argv[1:])\n";
  const Outcome outcome = run_paceline({"run", script, "-m", "x"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("arguments ['-m', 'x']"));
  const Outcome module =
      run_paceline({"run", "--nproc-per-node", "1", "-m", "json.tool", "--help"});
  EXPECT_EQ(module.exit_code, 0);
  EXPECT_THAT(module.out, HasSubstr("--json-lines"));
  const Outcome none = run_paceline({"run", "-m"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, Says("program.no_module"));
}

TEST(RunUsage, help_names_every_option_its_default_and_examples) {
  const Outcome outcome = run_paceline({"run", "--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* text : {"--nproc-per-node", "PET_NPROC_PER_NODE", "--log-dir", "--all-ranks",
                           "--shutdown-timeout", "Examples:", "paceline run --nproc-per-node 2"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
}

// A command whose output cannot be written has not succeeded.
TEST(RunUsage, output_that_is_lost_is_an_error) {
  for (const char* command : {"run --help", "topo", "completion bash", "doctor",
                              "submit slurm --dry-run true", "run --print-config true"}) {
    const Outcome outcome =
        PacelineProcess({"-c", fmt::format("{} {} >/dev/full", PACELINE_COMMAND, command)}, {},
                        "/bin/sh")
            .wait();
    EXPECT_EQ(outcome.exit_code, 3) << command << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device")) << command;
  }
}

TEST(RunUsage, output_to_a_closed_stream_is_an_error) {
  for (const char* command : {"run --help", "topo", "doctor", "ps", "run echo one",
                              "run --all-ranks --nproc-per-node 2 echo one"}) {
    const Outcome outcome =
        PacelineProcess({"-c", fmt::format("{} {} >&-", PACELINE_COMMAND, command)}, {}, "/bin/sh")
            .wait();
    EXPECT_EQ(outcome.exit_code, 3) << command << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("Bad file descriptor")) << command;
  }
  const Outcome silent =
      PacelineProcess({"-c", PACELINE_COMMAND " run true <&- >&- 2>&-"}, {}, "/bin/sh").wait();
  EXPECT_EQ(silent.exit_code, 0);
}

TEST(RunUsage, every_option_has_a_line_in_the_configuration) {
  const Outcome help = run_paceline({"run", "--help"});
  const Outcome config = run_paceline({"run", "--print-config", "--role", "trainer", "true"},
                                      {{"PET_MONITOR_INTERVAL", "3"}, {"PET_ENCRYPT", "1"}});
  ASSERT_EQ(config.exit_code, 0) << config.err;
  int count = 0;
  const std::regex option("\n +(?:-., *)?(--[a-z-]+)");
  for (std::sregex_iterator one(help.out.begin(), help.out.end(), option), end; one != end; ++one) {
    const std::string name = (*one)[1];
    if (name == "--help" || name == "--dry-run" || name == "--print-config") continue;
    EXPECT_THAT("\n" + config.out, HasSubstr("\n" + name + " "));
    ++count;
  }
  EXPECT_GT(count, 30) << help.out;
  for (const char* line :
       {"--role +trainer +flag --role", "--monitor-interval +3 +variable PET_MONITOR_INTERVAL",
        "--encrypt +yes +variable PET_ENCRYPT", "--backend +paceline +default",
        "--rdzv-endpoint +none +default", "--redirects +none +default"}) {
    EXPECT_THAT(config.out, testing::ContainsRegex(line));
  }
}

TEST(RunUsage, a_script_without_its_interpreter_is_told_from_a_missing_one) {
  const FreshDirectory directory;
  const std::string script = directory.write("train.sh", "#!/nope/sh\n");
  chmod(script.c_str(), 0755);
  const Outcome outcome = run_paceline({"run", script});
  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_THAT(outcome.err, Says("program.interpreter_missing", script));
}

TEST(RunUsage, a_dry_run_starts_nothing) {
  const FreshDirectory directory;
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", "--dry-run", "touch", directory.file("a b")});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("RANK=1"));
  EXPECT_THAT(outcome.out, HasSubstr("a b'"));
  EXPECT_FALSE(std::filesystem::exists(directory.file("a b")));
}

// The names in lines "NAME=value" that are not variables of this process, but only of the ranks.
std::set<std::string> variables_in(const std::string& text) {
  std::set<std::string> names;
  const std::regex line(
      R"((?:^|\n) *((?:PACELINE|TORCHELASTIC|OMP|OPENBLAS|MASTER|LOCAL|GROUP|ROLE|)"
      R"(RANK|WORLD)[A-Z_]*)=)");
  for (std::sregex_iterator found(text.begin(), text.end(), line), end; found != end; ++found) {
    if (std::getenv((*found)[1].str().c_str()) == nullptr) names.insert((*found)[1]);
  }
  return names;
}

TEST(RunUsage, a_dry_run_names_every_variable_that_a_rank_gets) {
  const FreshDirectory directory;
  const std::vector<std::vector<std::string>> all = {
      {},
      {"--max-restarts", "1"},
      {"--timeline", directory.file("trace.json")},
      {"--hosts", "localhost:1"},
      {"--hosts", "localhost:1", "--max-restarts", "1", "--threads-per-rank", "1"}};
  for (std::vector<std::string> options : all) {
    options.insert(options.begin(), "run");
    options.push_back("env");
    const Outcome real = run_paceline(options);
    options.insert(options.end() - 1, "--dry-run");
    const Outcome told = run_paceline(options);
    EXPECT_EQ(real.exit_code, 0) << real.err;
    EXPECT_EQ(variables_in(told.out), variables_in(real.out)) << options.at(1);
    EXPECT_GT(variables_in(told.out).size(), 20u);
  }
}

TEST(RunUsage, a_working_directory_that_was_removed_is_said) {
  PacelineProcess paceline({"-c",
                            "mkdir \"$TMPDIR/gone\" && cd \"$TMPDIR/gone\" && rmdir \"$PWD\" && "
                            "exec " PACELINE_COMMAND " run true"},
                           {}, "/bin/sh");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("cli.directory_gone", paceline.temporary() + "/gone",
                                "No such file or directory"));
}

}  // namespace
}  // namespace paceline::launcher
