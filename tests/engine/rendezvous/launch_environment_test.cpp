#include "paceline/engine/rendezvous/launch_environment.h"

#include <gtest/gtest.h>

#include "tests/engine/rendezvous/variables_of.h"
#include "tests/harness/expect_error.h"

namespace paceline {
namespace {

LaunchEnvironment detect(Variables variables) {
  return detect_launch_environment(variables_of(std::move(variables)));
}

void expect_refused(const Variables& variables, const std::vector<std::string>& words) {
  expect_error(ErrorCode::kInvalid, words, [&] { detect(variables); });
}

const Variables kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "77"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "12"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "7"},
                          {"SLURM_PROCID", "6"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "3"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};

Variables joined(Variables left, const Variables& right) {
  left.insert(right.begin(), right.end());
  return left;
}
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(LaunchEnvironment, nothing_is_a_group_of_one) {
  const auto environment = detect({});
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.launcher, "none");
}

TEST(LaunchEnvironment, reads_the_role_that_a_launcher_of_roles_gave) {
  const Variables launched = with(kTorchrun, "PACELINE_STORE", "h:1");
  struct Row {
    Variables variables;
    std::string role;
    int role_rank;
  };
  const std::vector<Row> rows = {
      {launched, "", 0},
      {with(with(launched, "ROLE_NAME", "trainer"), "ROLE_RANK", "1"), "trainer", 1},
      {with(with(launched, "ROLE_NAME", "default"), "ROLE_RANK", "3"), "", 0},
      {with(launched, "ROLE_NAME", "trainer"), "", 0},
      {with(launched, "ROLE_RANK", "1"), "", 0},
      // A ROLE_RANK that the launcher did not set: another program happens to use this name.
      {with(with(kTorchrun, "ROLE_NAME", "trainer"), "ROLE_RANK", "1"), "", 0},
  };
  for (const Row& row : rows) {
    const auto environment = detect(row.variables);
    EXPECT_EQ(environment.role, row.role);
    EXPECT_EQ(environment.role_rank, row.role_rank);
  }
}

TEST(LaunchEnvironment, reads_torchruns_variables) {
  const auto environment = detect(
      joined(kTorchrun, {{"TORCHELASTIC_RUN_ID", "abc"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.restart_count, 2);
  EXPECT_EQ(environment.job_id, "abc");
  EXPECT_EQ(environment.launcher, "torchrun");
  EXPECT_EQ(detect(with(kTorchrun, "PACELINE_STORE", "h:1")).launcher, "paceline");
  EXPECT_EQ(detect(kTorchrun).launcher, "env");
}

TEST(LaunchEnvironment, by_hand_without_local_variables_says_one_rank_a_host) {
  const auto environment = detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST(LaunchEnvironment, reads_open_mpi) {
  const auto environment = detect(kOpenMpi);
  EXPECT_EQ(environment.launcher, "openmpi");
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.job_id, "77");
}

TEST(LaunchEnvironment, reads_a_slurm_step) {
  const auto environment = detect(kSlurm);
  EXPECT_EQ(environment.launcher, "slurm");
  EXPECT_EQ(environment.rank, 6);
  EXPECT_EQ(environment.world_size, 7);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.job_id, "12.0");
  EXPECT_EQ(detect(with(with(kSlurm, "SLURM_NODEID", "2"), "SLURM_LOCALID", "1")).local_world_size,
            2);
  for (const char* text : {"", "x", "2(x", "2(x3", "2(x3),", "0", "2,,1", "2(x3)1"}) {
    expect_refused(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", text), {"SLURM_STEP_TASKS_PER_NODE"});
  }
}

TEST(LaunchEnvironment, reads_pmi) {
  const auto environment = detect(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(environment.launcher, "pmi");
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_FALSE(environment.job_id.empty());
}

TEST(LaunchEnvironment, numbers_are_read_strictly) {
  for (const char* text : {"", " ", "1 ", " 1", "+1", "-1", "0x1", "1.0", "one", "2147483648",
                           "9223372036854775808"}) {
    expect_refused(with(kTorchrun, "RANK", text), {"RANK='" + std::string(text) + "'"});
    expect_refused(with(kTorchrun, "WORLD_SIZE", text), {"WORLD_SIZE='" + std::string(text) + "'"});
  }
  expect_refused(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "x"),
                 {"TORCHELASTIC_RESTART_COUNT"});
}

TEST(LaunchEnvironment, incomplete_or_impossible_numbers_are_named) {
  expect_refused({{"RANK", "0"}}, {"RANK is set", "WORLD_SIZE is not"});
  expect_refused({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set", "RANK is not"});
  expect_refused({{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE is not"});
  expect_refused(with(kTorchrun, "RANK", "8"), {"RANK=8", "WORLD_SIZE=8"});
  expect_refused(with(with(kTorchrun, "WORLD_SIZE", "0"), "RANK", "0"), {"WORLD_SIZE=0"});
  expect_refused(with(kTorchrun, "LOCAL_RANK", "2"), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"});
  expect_refused(with(kTorchrun, "LOCAL_WORLD_SIZE", "9"), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
  expect_refused(with(kSlurm, "SLURM_PROCID", "7"), {"SLURM_PROCID=7", "SLURM_STEP_NUM_TASKS=7"});
}

TEST(LaunchEnvironment, two_rows_that_disagree_show_both_and_the_corrected_command) {
  const Variables by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  expect_refused(joined(by_hand, kOpenMpi),
                 {"RANK=0 WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
                  "env -u RANK -u WORLD_SIZE"});
  expect_refused(joined(by_hand, kSlurm), {"SLURM_PROCID=6", "env -u RANK"});
  expect_refused(joined(kOpenMpi, kSlurm),
                 {"OMPI_COMM_WORLD_RANK=3", "SLURM_PROCID=6", "srun -n 7"});
}

TEST(LaunchEnvironment, two_rows_that_agree_are_one_launcher) {
  const auto environment = detect(joined({{"RANK", "3"}, {"WORLD_SIZE", "4"}}, kOpenMpi));
  EXPECT_EQ(environment.launcher, "openmpi");
  EXPECT_EQ(environment.local_world_size, 2);
}

TEST(LaunchEnvironment, agents_started_by_another_launcher_speak_for_their_workers) {
  EXPECT_EQ(detect(joined(with(kTorchrun, "TORCHELASTIC_RUN_ID", "a"), kSlurm)).launcher,
            "torchrun");
  EXPECT_EQ(detect(joined(with(kTorchrun, "TORCHELASTIC_RUN_ID", "a"), kOpenMpi)).launcher,
            "torchrun");
  EXPECT_EQ(detect(joined(with(kTorchrun, "PACELINE_STORE", "h:1"), kSlurm)).launcher, "paceline");
}

TEST(LaunchEnvironment, a_launcher_between_paceline_run_and_its_rank_is_named) {
  const Variables rank = with(kTorchrun, "PACELINE_STORE", "h:1");
  const std::vector<std::string> words = {"one inside the other", "RANK=3 WORLD_SIZE=8",
                                          "one launcher only: paceline run --nproc-per-node 2 "};
  const auto expect_named = [&](const Variables& between, const std::string& name) {
    std::vector<std::string> all = words;
    all.push_back(name);
    expect_refused(joined(rank, between), all);
  };
  expect_named(kOpenMpi, "mpirun has started it (OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4)");
  expect_named({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "mpirun has started it (PMI_RANK=0");
  expect_named({{"TORCHELASTIC_USE_AGENT_STORE", "True"}}, "torchrun has started it");
}

// The variables of mpirun's and Hydra's ranks on two nodes of a SLURM job, whatever its name is.
TEST(LaunchEnvironment, steps_that_only_start_an_mpis_helpers_do_not_count) {
  const Variables helpers = {{"SLURM_JOB_NAME", "interactive"},
                             {"SLURM_JOB_ID", "12"},
                             {"SLURM_STEP_ID", "0"},
                             {"SLURM_STEP_NUM_NODES", "2"},
                             {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_PROCID", "1"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_NODEID", "1"}};
  const Variables hydra = {
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  for (const char* name : {"interactive", "train"}) {
    const auto step = with(helpers, "SLURM_JOB_NAME", name);
    EXPECT_EQ(detect(joined(kOpenMpi, step)).launcher, "openmpi");
    EXPECT_EQ(detect(joined(hydra, step)).launcher, "pmi");
  }
  // One task of the program itself on each node; SLURM's own PMI agrees.
  EXPECT_EQ(detect(joined(helpers, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})).launcher, "slurm");
}

TEST(LaunchEnvironment, the_name_of_a_step_says_nothing) {
  for (const char* name : {"interactive", "bash", "sh", "zsh"}) {
    const auto environment = detect(with(kSlurm, "SLURM_JOB_NAME", name));
    EXPECT_EQ(environment.launcher, "slurm") << name;
    EXPECT_EQ(environment.world_size, 7) << name;
    expect_refused({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_NAME", name}}, {"SLURM_NTASKS=4", "srun "});
  }
}

// The variables that SLURM 22.05 sets: a step over both components of a job counts its tasks as one
// group.
TEST(LaunchEnvironment, a_step_over_the_components_of_a_job_is_one_group) {
  const Variables step = {{"SLURM_JOB_ID", "11"},
                          {"SLURM_HET_SIZE", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NODELIST", "n[1-2]"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1,2"},
                          {"SLURM_PROCID", "2"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"}};
  const auto environment = detect(step);
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 3);
  EXPECT_EQ(environment.local_world_size, 2);
}

// With LaunchParameters=use_interactive_step, the shell of salloc is a step of SLURM's own.
TEST(LaunchEnvironment, a_program_in_slurms_interactive_step_is_told_to_prepend_srun) {
  const Variables shell = {{"SLURM_JOB_ID", "5"},         {"SLURM_STEP_ID", "4294967290"},
                           {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"},
                           {"SLURM_PROCID", "0"},         {"SLURM_NTASKS", "4"}};
  expect_refused(shell, {"SLURM_NTASKS=4", "Prepend srun"});
  EXPECT_EQ(detect(with(shell, "SLURM_NTASKS", "1")).launcher, "none");
}

TEST(LaunchEnvironment, a_shell_in_a_step_of_one_task_is_a_process_alone) {
  EXPECT_EQ(detect(with(kSlurm, "SLURM_STEP_NUM_TASKS", "1")).launcher, "none");
}

TEST(LaunchEnvironment, an_sbatch_script_without_srun_is_told_to_prepend_it) {
  expect_refused({{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "4"}}, {"SLURM_NTASKS=4", "srun "});
  EXPECT_EQ(detect({{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "1"}}).world_size, 1);
  EXPECT_EQ(detect(joined(kOpenMpi, {{"SLURM_NTASKS", "4"}})).launcher, "openmpi");
}

}  // namespace
}  // namespace paceline
