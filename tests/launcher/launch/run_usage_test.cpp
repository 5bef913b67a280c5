// Everything that `paceline run` refuses, before any process exists, and the messages.

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

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using testing::HasSubstr;
using testing::Not;

struct UsageRefusal {
  std::vector<std::string> options;
  std::string message;  // part of the message
};

class RunRefuses : public testing::TestWithParam<UsageRefusal> {};

TEST_P(RunRefuses, with_exit_code_2_before_anything_starts) {
  const FreshDirectory directory;
  std::vector<std::string> arguments = GetParam().options;
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), {"touch", directory.file("started")});
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().message));
  EXPECT_EQ(outcome.out, "");
  EXPECT_LT(outcome.seconds.count(), 10.0);  // 10 ms when the machine is idle
  EXPECT_FALSE(std::filesystem::exists(directory.file("started")));
}

INSTANTIATE_TEST_SUITE_P(
    Options, RunRefuses,
    testing::Values(
        UsageRefusal{{"--nproc-per-node", "0"},
                     "--nproc-per-node: '0' is not a whole number from 1 to"},
        UsageRefusal{{"--nproc-per-node", "-1"}, "--nproc-per-node: '-1'"},
        UsageRefusal{{"--nproc-per-node", "abc"}, "--nproc-per-node: 'abc'"},
        UsageRefusal{{"--nproc-per-node", "1e9"}, "--nproc-per-node: '1e9'"},
        UsageRefusal{{"--nproc-per-node", "2147483648"}, "--nproc-per-node: '2147483648'"},
        UsageRefusal{{"--nproc-per-node", "99999999999999999999"}, "--nproc-per-node: '999"},
        UsageRefusal{{"--nproc-per-node", ""}, "--nproc-per-node: the value '' is empty"},
        UsageRefusal{{"--nproc-per-node="}, "--nproc-per-node: the value '' is empty"},
        UsageRefusal{{"--nproc-per-node", " 2"}, "--nproc-per-node: ' 2'"},
        UsageRefusal{{"--nproc-per-node", "gpu"}, "cpus only"},
        UsageRefusal{{"--hang-timeout", "0", "--hang-action", "kill"}, "with 0 nothing is watched"},
        UsageRefusal{{"--rdzv-conf", "join_timeout=abc"},
                     "--rdzv-conf: 'join_timeout=abc' is not a"},
        UsageRefusal{{"--rdzv-id", "a\033[31mb\nc"},
                     "--rdzv-id: 'a\\x1b[31mb\\x0ac' is not a name without control characters"},
        UsageRefusal{{"--roles", "trainer"}, "--roles: 'trainer': write NAME=COUNT, as in"},
        UsageRefusal{{"--roles", "trainer=0"}, "--roles: 'trainer=0': a role has from 1 to"},
        UsageRefusal{{"--roles", "a=1,a=2"}, "--roles: role 'a' is given twice"},
        UsageRefusal{{"--roles", "a=1, b=2"}, "--roles: ' b' is not the name of a role"},
        UsageRefusal{{"--roles", "a=12,a1=2"}, "--roles: 'a1': a role's name must not end"},
        UsageRefusal{{"--roles", ""}, "--roles: the value '' is empty"},
        UsageRefusal{{"--roles", "a=2,b=1", "--nproc-per-node", "2"},
                     "--roles: 'a=2,b=1': the counts add up to 3 ranks, but 2 are to start"},
        UsageRefusal{{"--roles", "a=2", "--nproc-per-node", "1"}, "2 ranks, but 1 is to start"},
        UsageRefusal{{"--roles", "a=5000"}, "--roles: 'a=5000': 5000 ranks on one node; at most"},
        UsageRefusal{{"--roles", "a=2,b=1", "--nnodes", "2", "--rdzv-endpoint", "h"},
                     "--roles: 'a=2,b=1': 3 ranks cannot be divided evenly among 2 nodes"},
        UsageRefusal{{"--roles", "a=2", "--nnodes", "1:2", "--rdzv-endpoint", "h"},
                     "so the number of nodes must be fixed; --nnodes is 1:2"},
        UsageRefusal{{"--roles", "a=2", "--role", "b"}, "--roles and --role exclude each other"},
        UsageRefusal{{"--roles", "a=2", "--hosts", "h,i:2"},
                     "--roles: 'a=2': the counts add up to 2 ranks, but 3 are to start"},
        UsageRefusal{{"--until", "a"}, "--until: 'a': it names roles, and neither --roles nor"},
        UsageRefusal{{"--roles", "a=2", "--until", "b"}, "--until: 'b' is not a role of --roles"},
        UsageRefusal{{"--rdzv-id", "a\tb"}, "--rdzv-id: 'a\\x09b' is not"},
        UsageRefusal{{"--nnodes", "0"}, "--nnodes: '0'"},
        UsageRefusal{{"--nnodes", "2:1"}, "--nnodes: '2:1': MIN is above MAX"},
        UsageRefusal{{"--hosts", "a,b", "--nnodes", "2:1"}, "--nnodes: '2:1': MIN is above MAX"},
        UsageRefusal{{"-n", "2"}, "unknown option -n; did you mean --nproc-per-node?"},
        UsageRefusal{{"-np", "2"}, "unknown option -np; did you mean --nproc-per-node?"},
        UsageRefusal{{"-nproc-per-node=2"},
                     "option -nproc-per-node; did you mean --nproc-per-node?"},
        UsageRefusal{{"-log-dir", "x"}, "unknown option -log-dir; did you mean --log-dir?"},
        UsageRefusal{{"-q"}, "unknown option -q\n"},
        UsageRefusal{{"--nnodes", "1:"}, "--nnodes: '1:'"},
        UsageRefusal{{"--nnodes", "a:b"}, "--nnodes: 'a:b'"},
        UsageRefusal{{"--node-rank", "7"}, "--node-rank: '7' is not a whole number from 0 to 0"},
        UsageRefusal{{"--nnodes", "2", "--node-rank", "2"}, "--node-rank: '2'"},
        UsageRefusal{{"--nnodes", "2", "--standalone"}, "--standalone is for one node"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "localhost"}, "PACELINE_SECRET_FILE"},
        UsageRefusal{{"--nnodes", "2"},
                     "--nnodes: '2': where do the machines meet? Give each of them the same "
                     "--rdzv-endpoint HOST:29400"},
        UsageRefusal{{"--nnodes", "1:2", "--node-rank", "1"}, "where do the machines meet?"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "fe80::1"},
                     "--rdzv-endpoint: 'fe80::1': an IPv6 address needs brackets"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "0.0.0.0:29400"},
                     "--rdzv-endpoint: '0.0.0.0' stands for all addresses of any host"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "head :29400"},
                     "--rdzv-endpoint: 'head ' is neither a host name nor a host address"},
        UsageRefusal{{"--nnodes", "2", "--master-addr", "head:29400"},
                     "--master-addr: 'head:29400' is neither a host name nor a host address"},
        UsageRefusal{{"--hosts", "a,-oProxyCommand=x"},
                     "--hosts: '-oProxyCommand=x' is not a host"},
        UsageRefusal{{"--hosts", "a:0"}, "--hosts: slots '0'"},
        UsageRefusal{{"--hosts", "a,b,a"}, "host 'a' is listed twice"},
        UsageRefusal{{"--hostfile", "/nowhere/hosts"}, "--hostfile /nowhere/hosts: No such file"},
        UsageRefusal{{"--hosts", "a", "--hostfile", "x"},
                     "--hosts and --hostfile exclude each other"},
        UsageRefusal{{"--hosts", "a,b", "--node-rank", "1"},
                     "--node-rank does not go with --hosts"},
        UsageRefusal{{"--hosts", "a,b", "--standalone"}, "--standalone does not go with --hosts"},
        UsageRefusal{{"--hosts", "a,b", "--nnodes", "3"}, "--nnodes: 3, but there are 2 hosts"},
        UsageRefusal{{"--hosts", "a,b", "--nnodes", "1:3"}, "--nnodes: 1:3, but there are 2 hosts"},
        UsageRefusal{{"--hosts", "a,b", "--nnodes", "0:2"}, "--nnodes: '0' is not a whole"},
        UsageRefusal{{"--hosts", "a,b", "--rdzv-conf", "is_host=true"},
                     "--rdzv-conf does not go with --hosts: is_host is set for the first host"},
        UsageRefusal{{"--hosts", "a,b", "--rdzv-endpoint", "a"},
                     "--rdzv-endpoint does not go with --hosts"},
        UsageRefusal{{"--hosts", "a:2", "--nproc-per-node", "3"},
                     "3 ranks, but host a has 2 slots"},
        UsageRefusal{{"--hosts", "a", "--nproc-per-node", "auto"},
                     "'auto' needs the slots of host a"},
        UsageRefusal{{"--hosts", "a", "--export", "A B"},
                     "--export: 'A B' is not the name of a variable"},
        UsageRefusal{{"--hosts", "a", "--export", "NO_SUCH_VARIABLE"},
                     "there is no variable NO_SUCH_VARIABLE"},
        UsageRefusal{{"--hosts", "a", "--ssh-command", "ssh;x"},
                     "--ssh-command: 'ssh;x': no shell reads"},
        UsageRefusal{{"--hosts", "a", "--start-timeout", "x"}, "--start-timeout: 'x'"},
        UsageRefusal{{"--hosts", "a", "--tee", "4"}, "--tee: '4'"},
        UsageRefusal{{"--hosts", "a,b", "--timeline", "/nowhere/x"},
                     "--timeline: /nowhere/x: there is no folder"},
        UsageRefusal{{"--export", "PATH"},
                     "--export is for --hosts and --hostfile, and none is given"},
        UsageRefusal{{"--ssh-command", "ssh"}, "--ssh-command is for --hosts"},
        UsageRefusal{{"--host-retries", "2"}, "--host-retries is for --hosts"},
        UsageRefusal{{"--hosts", "a,b", "--host-retries", "x"},
                     "--host-retries: 'x' is not a whole"},
        UsageRefusal{{"--master-port", "-5"}, "--master-port: '-5'"},
        UsageRefusal{{"--master-port", "65536"},
                     "--master-port: '65536' is not a whole number from 1"},
        UsageRefusal{{"--master-port", "29500x"}, "--master-port: '29500x'"},
        UsageRefusal{{"--bind", "l3"},
                     "--bind: 'l3' is not core, cache, numa, socket, none or map:"},
        UsageRefusal{{"--bind", "map:0;"}, "--bind: 'map:0;'"},
        UsageRefusal{{"--bind", "map:0;0"}, "--bind map: 2 sets for 1 rank"},
        UsageRefusal{{"--bind", "map:60000"}, "cpu 60000 was not given to this process"},
        UsageRefusal{{"--numa-binding", "gpu"}, "--numa-binding: 'gpu' is not node"},
        UsageRefusal{{"--numa-binding", "node", "--bind", "core"}, "exclude each other"},
        UsageRefusal{{"--threads-per-rank", "0"}, "--threads-per-rank: '0'"},
        UsageRefusal{{"--backend", "glo"},
                     "--backend: backend 'glo': unknown backend 'glo'; choose one of"},
        UsageRefusal{{"--backend", "cpu:gloo,cpu:mpi"}, "cpu is named twice"},
        UsageRefusal{{"--backend", "mpi"}, "mpirun -x PACELINE_BACKEND=mpi"},
        UsageRefusal{{"--shutdown-timeout", "-1"}, "--shutdown-timeout: '-1'"},
        UsageRefusal{{"--shutdown-timeout", "nan"}, "--shutdown-timeout: 'nan'"},
        UsageRefusal{{"--tee", "4"}, "--tee: '4'"},
        UsageRefusal{{"--tee", "3:1"}, "--tee: '3' is not a whole number from 0 to 0"},
        UsageRefusal{{"--local-ranks-filter", "1"}, "--local-ranks-filter: '1'"},
        UsageRefusal{{"--nproc-per-nod", "2"}, "did you mean --nproc-per-node?"},
        UsageRefusal{{"--nprco_per_node=2"}, "did you mean --nproc-per-node?"},
        UsageRefusal{{"--zzz"}, "unknown option --zzz"},
        UsageRefusal{{"--max-restarts", "-1"}, "--max-restarts: '-1'"},
        UsageRefusal{{"--chaos", "burn"}, "--chaos: 'burn': 'burn' is not kill, stop or slow"},
        UsageRefusal{{"--restart-window", "x"}, "--restart-window: 'x' is not a number of seconds"},
        UsageRefusal{{"--monitor-interval", "x"}, "--monitor-interval: 'x'"},
        UsageRefusal{{"--rdzv-backend", "etcd-v2"}, "no etcd is needed"},
        UsageRefusal{{"--rdzv-backend", "x"},
                     "--rdzv-backend: 'x' is not paceline, c10d or static"},
        UsageRefusal{{"--rdzv-conf", "join_timeout"},
                     "--rdzv-conf: 'join_timeout=' is not a number of seconds"},
        UsageRefusal{{"--rdzv-conf", "colour=red"},
                     "--rdzv-conf: 'colour=red' is not join_timeout"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "h:x"}, "--rdzv-endpoint"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "h", "--master-addr", "h"},
                     "exclude each"},
        UsageRefusal{{"--rdzv-conf", "keep_alive_interval=0"},
                     "'keep_alive_interval=0' is not above 0"},
        UsageRefusal{{"--rdzv-conf", "keep_alive_max_attempt=0"},
                     "--rdzv-conf: 'keep_alive_max_attempt=0' is not a whole"},
        UsageRefusal{{"--rdzv-conf", "is_host=maybe"}, "'is_host=maybe' is not is_host=true or"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "h:0"},
                     "'h:0' is not HOST:PORT with a port"},
        UsageRefusal{{"--rdzv-endpoint", "h:x"}, "--rdzv-endpoint"},
        UsageRefusal{{"--nnodes", "2", "--rdzv-endpoint", "h:65536"}, "'h:65536' is not HOST:PORT"},
        UsageRefusal{{"--nnodes", "70000"},
                     "--nnodes: '70000' is not a whole number from 1 to 65536"},
        UsageRefusal{{"--node-rank", "x"}, "--node-rank: 'x'"},
        UsageRefusal{{"--start-timeout", "5"}, "--start-timeout is for --hosts"},
        UsageRefusal{{"--hosts", "a", "--start-timeout", "-1"},
                     "--start-timeout: '-1' is not a number of seconds"},
        UsageRefusal{{"--max-restarts", "1000001"}, "--max-restarts: '1000001'"},
        UsageRefusal{{"--restart-window", "-1"}, "--restart-window: '-1'"},
        UsageRefusal{{"--threads-per-rank", "5000"}, "--threads-per-rank: '5000'"},
        UsageRefusal{{"--straggler-after", "x"}, "--straggler-after: 'x'"},
        UsageRefusal{{"--chaos-seed", "-1"}, "--chaos-seed: '-1' is not a whole number from 0"},
        UsageRefusal{{"--chaos", "kill:rank=2@1s", "--nproc-per-node", "2"},
                     "--chaos: there is no rank 2: the last one is 1"},
        UsageRefusal{{"--chaos", "kill:every=0s"}, "'0' is not a number of seconds from 0.001"},
        UsageRefusal{{"--timeline", "/nowhere/x"}, "--timeline: /nowhere/x: there is no folder"},
        UsageRefusal{{"--config", "/nowhere/x"}, "/nowhere/x: No such file"},
        UsageRefusal{{"--master-addr="}, "--master-addr: the value '' is empty"},
        UsageRefusal{{"--rdzv-id="}, "--rdzv-id: the value '' is empty"},
        UsageRefusal{{"--logs-specs", "x"}, "--logs-specs is an option of torchrun"},
        UsageRefusal{{"--redirects", "4"}, "--redirects: '4' is not 0, 1 (stdout), 2 (stderr), 3"},
        UsageRefusal{{"-r", "1:3"}, "--redirects: '1' is not a whole number from 0 to 0"},
        UsageRefusal{{"--standalone=maybe"}, "--standalone: 'maybe' is not 1, true, yes, on, 0"},
        UsageRefusal{{"--standalone="}, "--standalone: '' is not 1, true"}));

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
  EXPECT_THAT(run_paceline({"run"}).err, HasSubstr("no program given"));
  EXPECT_THAT(run_paceline({"run", "--"}).err, HasSubstr("no program given"));
  EXPECT_THAT(run_paceline({"run", "--nnodes"}).err, HasSubstr("--nnodes needs a value"));
  EXPECT_THAT(run_paceline({"rnu"}).err, HasSubstr("did you mean run?"));
}

TEST(RunUsage, logical_shards_must_fit_the_ranks_and_fix_the_threads) {
  const Outcome refused =
      run_paceline({"run", "--nproc-per-node", "3", "--logical-shards", "8", "true"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--logical-shards 8: they cannot be divided among 3 ranks, "
                                     "each with 1, 2, 4, 8, ...; start 1, 2, 4 or 8"));
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
  EXPECT_THAT(ended.err, HasSubstr("a rank's state was damaged (--on-damage stop)"));
}

TEST(Usage, an_unknown_command_or_option_is_answered_with_what_may_have_been_meant) {
  for (const auto& [typed, answer] : std::map<std::string, std::string>{
           {"--verison", "paceline: unknown option --verison; did you mean --version?; see"},
           {"version", "unknown command 'version'; did you mean --version?"},
           {"--nproc-per-node", "--nproc-per-node; options go after the command; see"},
           {"./train", "unknown command './train'; to start a program: paceline run ./train;"}}) {
    const Outcome outcome = run_paceline({typed});
    EXPECT_EQ(outcome.exit_code, 2) << typed;
    EXPECT_THAT(outcome.err, HasSubstr(answer));
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
  EXPECT_THAT(run_paceline({"help", "rnu"}).err, HasSubstr("did you mean run?"));
  EXPECT_EQ(run_paceline({"help", "help"}).out, run_paceline({"help"}).out);
}

TEST(RunUsage, options_behind_the_program_are_its_own_and_noted_where_one_rank_starts) {
  const Outcome alone =
      run_paceline({"run", "sh", "-c", "echo $WORLD_SIZE $1", "sh", "--nproc_per_node", "2"});
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_EQ(alone.out, "1 --nproc_per_node\n");
  EXPECT_THAT(alone.err, HasSubstr("paceline: note: --nproc_per_node comes after the program, so "
                                   "sh gets it, and one rank is started; options of paceline run "
                                   "come first: paceline run --nproc_per_node ... sh\n"));
  for (const std::vector<std::string>& asked :
       {std::vector<std::string>{"--nproc-per-node", "1"}, {"--nnodes", "1"}}) {
    std::vector<std::string> arguments = {"run"};
    arguments.insert(arguments.end(), asked.begin(), asked.end());
    arguments.insert(arguments.end(), {"true", "--nproc-per-node", "2", "--log-dir", "x"});
    EXPECT_THAT(run_paceline(arguments).err, Not(HasSubstr("note"))) << asked[0];
  }
  EXPECT_THAT(run_paceline({"run", "true", "--", "--nnodes", "2"}).err, Not(HasSubstr("note")));
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
  EXPECT_THAT(failed.err, HasSubstr("note: --log-dir, --max-restarts come after the program, so "
                                    "sh gets them; options of paceline run come first"));
  EXPECT_THAT(run({"--max-restarts", "0"}, {"--max-restarts", "2"}, "exit 2").err,
              Not(HasSubstr("note")));
  EXPECT_THAT(run({}, {"--log-dir", "x"}, "exit 0").err, Not(HasSubstr("note")));
  EXPECT_THAT(run({}, {"--log-dir", "x"}, "kill -9 $$").err, Not(HasSubstr("note")));
  EXPECT_THAT(run({}, {"--epochs", "3"}, "exit 2").err, Not(HasSubstr("note")));
}

TEST(RunUsage, a_bad_variable_is_named_and_the_command_line_wins) {
  const Outcome bad = run_paceline({"run", "true"}, {{"PET_NPROC_PER_NODE", "x"}});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("PET_NPROC_PER_NODE: 'x'"));
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
  EXPECT_THAT(typo.err,
              HasSubstr("paceline: warning: the variable PET_NPROC_PER_NDOE is not an option of "
                        "paceline or torchrun; did you mean PET_NPROC_PER_NODE?\n"));
  EXPECT_THAT(typo.err, HasSubstr("the variable PET_X is not an option of paceline or torchrun"));
  EXPECT_THAT(typo.err, Not(HasSubstr("PET_START_METHOD")));
}

TEST(RunUsage, ignored_options_of_torchrun_are_reported_where_it_matters) {
  const Outcome outcome =
      run_paceline({"run", "--no-python", "sh", "-c", "echo $0"}, {{"PET_LOCAL_ADDR", "10.0.0.1"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "sh\n");
  EXPECT_THAT(outcome.err, HasSubstr("PET_LOCAL_ADDR is torchrun's and has no effect here"));
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
    EXPECT_THAT(bad.err, HasSubstr(std::string("PET_ALL_RANKS: '") + value +
                                   "' is not 1, true, yes, on, 0, false, no or off"));
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
  EXPECT_THAT(missing.err, HasSubstr("'./no-such-program' does not exist"));
  EXPECT_EQ(run_paceline({"run", "no-such-program"}).exit_code, 127);
  EXPECT_EQ(run_paceline({"run", ""}).exit_code, 127);
  EXPECT_EQ(run_paceline({"run", directory.path()}).exit_code, 126);
  const Outcome python = run_paceline({"run", script});
  EXPECT_EQ(python.exit_code, 126);
  EXPECT_THAT(python.err, HasSubstr("python3 " + script));
  chmod(script.c_str(), 0755);  // no #! line
  const Outcome no_interpreter = run_paceline({"run", "--nproc-per-node", "2", script});
  EXPECT_EQ(no_interpreter.exit_code, 126);
  EXPECT_THAT(no_interpreter.err, HasSubstr("Exec format error"));
}

TEST(RunUsage, help_names_every_option_its_default_and_examples) {
  const Outcome outcome = run_paceline({"run", "--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* text : {"--nproc-per-node", "PET_NPROC_PER_NODE", "--log-dir", "--all-ranks",
                           "--shutdown-timeout", "Examples:", "paceline run --nproc-per-node 2"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
}

// Output that cannot be written is not a success.
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
  EXPECT_THAT(outcome.err, HasSubstr("it is there, but not what its #! line names"));
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

// The names in lines "NAME=value" that this process does not have: variables of the ranks.
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
  EXPECT_THAT(outcome.err, HasSubstr("paceline run: the working directory"));
  EXPECT_THAT(outcome.err, HasSubstr("gone cannot be used: No such file or directory"));
}

}  // namespace
}  // namespace paceline::launcher
