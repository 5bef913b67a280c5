#include <filesystem>

#include <gtest/gtest.h>

#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"

namespace paceline::launcher {
namespace {

struct Job {
  LaunchOptions options;
  Placement plan;
  JobAddresses addresses{"127.0.0.1:4000", "127.0.0.1", 4001, 9};

  Environment environment(const Environment& inherited = {}, int local_rank = 1) const {
    return worker_environment(inherited, options, options.place(), local_rank, plan, addresses);
  }
  Environment with_terminal(Environment inherited, int local_rank) const {
    set_terminal(inherited, options, options.place(), local_rank);
    return inherited;
  }
};

Job job_of_two_ranks_on_each_of_three_nodes() {
  Job job;
  job.options.num_local_ranks = 2;
  job.options.num_nodes = 3;
  job.options.node_rank = 2;
  job.options.run_id = "run";
  job.plan.ranks = {{{0, 1, 2}, 3, 3}, {{3, 4, 5}, 3, 3}};
  return job;
}

TEST(WorkerEnvironment, the_chosen_backend_wins_over_the_inherited_one) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  EXPECT_EQ(job.environment({{"PACELINE_BACKEND", "mpi"}}).at("PACELINE_BACKEND"), "mpi");
  job.options.backend = "gloo";
  EXPECT_EQ(job.environment({{"PACELINE_BACKEND", "mpi"}}).at("PACELINE_BACKEND"), "gloo");
}

TEST(WorkerEnvironment, encryption_is_asked_for_or_left_as_it_is) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  EXPECT_EQ(job.environment().count("PACELINE_ENCRYPT"), 0u);
  EXPECT_EQ(job.environment({{"PACELINE_ENCRYPT", "1"}}).at("PACELINE_ENCRYPT"), "1");
  job.options.encrypt = true;
  EXPECT_EQ(job.environment({{"PACELINE_ENCRYPT", "0"}}).at("PACELINE_ENCRYPT"), "1");
}

TEST(WorkerEnvironment, logical_shards_are_those_of_the_options) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  EXPECT_EQ(job.environment({{"PACELINE_LOGICAL_SHARDS", "8"}}).count("PACELINE_LOGICAL_SHARDS"),
            0u);
  job.options.logical_shards = 6;
  EXPECT_EQ(job.environment({{"PACELINE_LOGICAL_SHARDS", "8"}}).at("PACELINE_LOGICAL_SHARDS"), "6");
}

TEST(WorkerEnvironment, relative_folders_are_the_launchers) {
  const Environment env = job_of_two_ranks_on_each_of_three_nodes().environment(
      {{"PACELINE_STEP_LOG", "steps"}, {"PACELINE_TIMELINE_DIR", "/spans"}});
  EXPECT_EQ(env.at("PACELINE_STEP_LOG"), std::filesystem::current_path() / "steps");
  EXPECT_EQ(env.at("PACELINE_TIMELINE_DIR"), "/spans");
  const Environment none =
      job_of_two_ranks_on_each_of_three_nodes().environment({{"PACELINE_STEP_LOG", ""}});
  EXPECT_EQ(none.at("PACELINE_STEP_LOG"), "");
}

TEST(WorkerEnvironment, places_a_rank_in_the_world) {
  const Environment env = job_of_two_ranks_on_each_of_three_nodes().environment();
  const Environment expected = {{"RANK", "5"},
                                {"WORLD_SIZE", "6"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"GROUP_RANK", "2"},
                                {"GROUP_WORLD_SIZE", "3"},
                                {"ROLE_NAME", "default"},
                                {"ROLE_RANK", "5"},
                                {"ROLE_WORLD_SIZE", "6"},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", "4001"},
                                {"TORCHELASTIC_RESTART_COUNT", "0"},
                                {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                {"TORCHELASTIC_RUN_ID", "run"},
                                {"OMP_NUM_THREADS", "3"},
                                {"OPENBLAS_NUM_THREADS", "3"},
                                {"GOMP_SPINCOUNT", "1000"},
                                {"PACELINE_THREAD_SHARE", "3"},
                                {"PACELINE_STORE", "127.0.0.1:4000"},
                                {"PACELINE_SECRET_FD", "9"}};
  EXPECT_EQ(env, expected);
}

TEST(WorkerEnvironment, a_rank_has_its_role_and_its_number_within_it) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();  // ranks 4 and 5 are on this node
  job.options.roles = {{"trainer", 2}, {"observer", 4}};
  const Environment env = job.environment();
  EXPECT_EQ(env.at("RANK"), "5");
  EXPECT_EQ(env.at("WORLD_SIZE"), "6");
  EXPECT_EQ(env.at("ROLE_NAME"), "observer");
  EXPECT_EQ(env.at("ROLE_RANK"), "3");
  EXPECT_EQ(env.at("ROLE_WORLD_SIZE"), "4");
  job.options.roles.clear();
  job.options.role = "evaluator";
  EXPECT_EQ(job.environment().at("ROLE_NAME"), "evaluator");
  EXPECT_EQ(job.environment().at("ROLE_RANK"), "5");
}

TEST(WorkerEnvironment, only_a_rank_that_writes_to_the_terminal_alone_may_draw_on_it) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  job.options.terminal = true;
  job.options.console = {{true, true}, {}};
  const Environment user = {{"TERM", "xterm"}, {"COLORTERM", "truecolor"}};
  const Environment draws = {
      {"PACELINE_TERMINAL", "1"}, {"TERM", "xterm"}, {"COLORTERM", "truecolor"}};
  const Environment dumb = {{"PACELINE_TERMINAL", "0"}, {"TERM", "dumb"}, {"NO_COLOR", "1"}};
  EXPECT_EQ(job.with_terminal(user, 0), draws);
  EXPECT_EQ(job.with_terminal(user, 1), dumb);
  EXPECT_EQ(job.with_terminal({}, 1), dumb);
  job.options.prefix_lines = true;
  EXPECT_EQ(job.with_terminal(user, 0), dumb);
}

TEST(WorkerEnvironment, colours_that_the_user_forces_stay) {
  const Job job = job_of_two_ranks_on_each_of_three_nodes();
  for (const char* force : {"FORCE_COLOR", "CLICOLOR_FORCE"}) {
    Environment user = {{force, "1"}, {"TERM", "xterm"}};
    Environment expected = user;
    expected["PACELINE_TERMINAL"] = "0";
    EXPECT_EQ(job.with_terminal(user, 0), expected);
  }
}

// How long OpenMP's threads spin: as the user chose; otherwise they sleep (PASSIVE) where threads
// share cores, and spin for a short time elsewhere.
TEST(WorkerEnvironment, openmp_threads_spin_for_a_short_time_unless_the_user_chose) {
  struct Row {
    Environment user;
    bool oversubscribed;
    std::string policy, spin_count;  // "": unset
  };
  const std::vector<Row> rows = {
      {{}, false, "", "1000"},
      {{}, true, "PASSIVE", ""},
      {{{"GOMP_SPINCOUNT", "7"}}, false, "", "7"},
      {{{"GOMP_SPINCOUNT", "7"}}, true, "PASSIVE", "7"},
      {{{"OMP_WAIT_POLICY", "ACTIVE"}}, false, "ACTIVE", ""},
      {{{"OMP_WAIT_POLICY", "ACTIVE"}}, true, "ACTIVE", ""},
  };
  for (const Row& row : rows) {
    Job job = job_of_two_ranks_on_each_of_three_nodes();
    job.plan.oversubscribed = row.oversubscribed;
    Environment env = job.environment(row.user);
    EXPECT_EQ(env["OMP_WAIT_POLICY"], row.policy);
    EXPECT_EQ(env["GOMP_SPINCOUNT"], row.spin_count);
    EXPECT_FALSE(env.contains("KMP_BLOCKTIME"));
  }
}

TEST(WorkerEnvironment, replaces_the_place_but_keeps_the_rest_of_what_it_inherits) {
  const Environment env =
      job_of_two_ranks_on_each_of_three_nodes().environment({{"RANK", "77"}, {"HOME", "/h"}});
  EXPECT_EQ(env.at("RANK"), "5");
  EXPECT_EQ(env.at("HOME"), "/h");
}

TEST(WorkerEnvironment, another_launchers_variables_are_not_passed_to_its_ranks) {
  const Environment plain = job_of_two_ranks_on_each_of_three_nodes().environment({});
  EXPECT_EQ(job_of_two_ranks_on_each_of_three_nodes().environment({{"OMPI_COMM_WORLD_RANK", "0"},
                                                                   {"OMPI_COMM_WORLD_SIZE", "1"},
                                                                   {"PMI_RANK", "0"},
                                                                   {"PMI_SIZE", "1"}}),
            plain);
}

TEST(WorkerEnvironment, threads_the_user_chose_stand) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  Environment env = job.environment({{"OMP_NUM_THREADS", "7"}});
  EXPECT_EQ(env.at("OMP_NUM_THREADS"), "7");
  EXPECT_EQ(env.at("OPENBLAS_NUM_THREADS"), "7");
  env = job.environment({{"OPENBLAS_NUM_THREADS", "2"}});
  EXPECT_EQ(env.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(env.at("OPENBLAS_NUM_THREADS"), "2");
}

TEST(WorkerEnvironment, an_invalid_number_of_threads_is_replaced) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  for (const char* odd : {"foo", "", "0"}) {
    const Environment env = job.environment({{"OMP_NUM_THREADS", odd}});
    EXPECT_EQ(env.at("OMP_NUM_THREADS"), "3") << odd;
    EXPECT_EQ(env.at("OPENBLAS_NUM_THREADS"), "3") << odd;
  }
  const Environment nested = job.environment({{"OMP_NUM_THREADS", "2,1"}});
  EXPECT_EQ(nested.at("OMP_NUM_THREADS"), "2,1");
  EXPECT_EQ(nested.at("OPENBLAS_NUM_THREADS"), "2");
}

TEST(WorkerEnvironment, threads_per_rank_on_the_command_line_wins_over_variables) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  job.options.threads_per_rank = 3;
  const Environment env =
      job.environment({{"OMP_NUM_THREADS", "7"}, {"OPENBLAS_NUM_THREADS", "8"}});
  EXPECT_EQ(env.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(env.at("OPENBLAS_NUM_THREADS"), "3");
}

TEST(WorkerEnvironment, waiting_threads_sleep_when_cpus_are_oversubscribed) {
  Job job = job_of_two_ranks_on_each_of_three_nodes();
  EXPECT_EQ(job.environment().count("OMP_WAIT_POLICY"), 0U);
  job.plan.oversubscribed = true;
  EXPECT_EQ(job.environment().at("OMP_WAIT_POLICY"), "PASSIVE");
  EXPECT_EQ(job.environment({{"OMP_WAIT_POLICY", "ACTIVE"}}).at("OMP_WAIT_POLICY"), "ACTIVE");
}

TEST(WorkerEnvironment, only_changes_are_listed_as_added) {
  const Environment added =
      added_variables({{"A", "1"}, {"B", "2"}, {"C", "3"}}, {{"A", "1"}, {"B", "0"}});
  EXPECT_EQ(added, (Environment{{"B", "2"}, {"C", "3"}}));
}

}  // namespace
}  // namespace paceline::launcher
