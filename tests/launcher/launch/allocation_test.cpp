// `paceline run` inside a SLURM job, with a script in place of srun, and inside MPI jobs.

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    directory.write("srun", "#!/bin/bash\necho \"$@\" >> " + directory.file("calls") +
                                "\nenv | grep -E '^S(LURM|RUN)_(LAB|STD|EX|CPUS_PER_T)' >> " +
                                directory.file("calls") +
                                "\nfor word; do shift; [ $word = --export=ALL ] && exec \"$@\"; "
                                "done\nexit 9\n");
    chmod(directory.file("srun").c_str(), 0755);
  }
  Outcome run(std::vector<std::string> options, PacelineProcess::Variables variables) {
    variables.emplace("PATH", directory.path() + ":/usr/bin:/bin");
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"sh", "-c", "echo $RANK/$WORLD_SIZE"});
    return run_paceline(options, std::move(variables));
  }
  std::string calls() const {
    std::ifstream file(directory.file("calls"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  FreshDirectory directory;
  // Both "nodes" are this machine, so an address is given. With a real srun the names of the nodes
  // would be enough.
  const PacelineProcess::Variables two_nodes = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "2,1"}};
};

TEST_F(Allocation, of_slurm_gives_its_nodes_and_tasks) {
  const Outcome outcome = run({"--all-ranks", "--master-addr", "127.0.0.1"}, two_nodes);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[n1:0] 0/3", "[n1:1] 1/3", "[n2:2] 2/3"));
  EXPECT_THAT(calls(), HasSubstr("--nodelist=n1 --nodes=1 --ntasks=1 --overlap"));
  EXPECT_THAT(calls(), HasSubstr("--nodelist=n2 "));
}

TEST_F(Allocation, is_left_alone_when_the_options_say_where_to_run) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--standalone"}, {"--nnodes", "1"}, {"--node-rank", "0"}}) {
    const Outcome outcome = run(options, two_nodes);
    EXPECT_EQ(outcome.out, "0/1\n") << outcome.err;
  }
  EXPECT_EQ(calls(), "");
}

TEST_F(Allocation, that_contradicts_the_options_or_itself_is_refused) {
  const Outcome nodes = run({"--nnodes", "3"}, two_nodes);
  EXPECT_EQ(nodes.exit_code, 2);
  EXPECT_THAT(nodes.err, Says("slurm.other_nnodes", 3, 2));
  const Outcome list = run({}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1;x"}});
  EXPECT_EQ(list.exit_code, 2);
  EXPECT_THAT(list.err, Says("slurm.not_a_node_list", "n[1;x"));
}

// The ways in which SLURM 22.05 starts a launcher, with the variables that it sets, and the result
// of `paceline run`: ranks that srun starts on the nodes ("[n1:0] 0/3"), ranks on this machine
// ("0/1"), or an error.
struct Way {
  std::string what;
  PacelineProcess::Variables variables;
  std::vector<std::string> options;
  std::vector<std::string> ranks;  // the lines of output, sorted
  std::optional<harness::SaysMatcher> error;
};

using Options = std::vector<std::string>;

const PacelineProcess::Variables kBatch = {
    {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-2]"},   {"SLURM_JOB_NUM_NODES", "2"},
    {"SLURM_PROCID", "0"}, {"SLURM_JOB_CPUS_PER_NODE", "2,1"}, {"SLURM_CPUS_ON_NODE", "2"},
    {"SLURM_NTASKS", "3"}, {"SLURM_TASKS_PER_NODE", "2,1"}};
const PacelineProcess::Variables kStepOfOneTask = {{"SLURM_STEP_ID", "0"},
                                                   {"SLURM_STEP_NODELIST", "n1"},
                                                   {"SLURM_STEP_NUM_TASKS", "1"},
                                                   {"SLURM_STEP_NUM_NODES", "1"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                   {"SLURM_NTASKS", "1"},
                                                   {"SLURM_TASKS_PER_NODE", "1"},
                                                   {"SLURM_PROCID", "0"}};

PacelineProcess::Variables changed(PacelineProcess::Variables variables,
                                   const PacelineProcess::Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

PacelineProcess::Variables without(PacelineProcess::Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::vector<Way> ways() {
  const PacelineProcess::Variables one_node = {{"SLURM_JOB_NODELIST", "n1"},
                                               {"SLURM_JOB_NUM_NODES", "1"},
                                               {"SLURM_NTASKS", "1"},
                                               {"SLURM_TASKS_PER_NODE", "1"},
                                               {"SLURM_CPUS_PER_TASK", "2"}};
  const PacelineProcess::Variables interactive =
      changed(kBatch, {{"SLURM_STEP_ID", "4294967290"},
                       {"SLURM_STEP_NUM_TASKS", "1"},
                       {"SLURM_STEP_NODELIST", "n1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  const Options by_nodes = {"[n1:0] 0/3", "[n1:1] 1/3", "[n2:2] 2/3"};
  const Options one_each = {"[n1:0] 0/2", "[n2:1] 1/2"};
  const Options two_here = {"[0] 0/2", "[1] 1/2"};
  const Options two_on_n1 = {"[n1:0] 0/2", "[n1:1] 1/2"};
  const Options two = {"--nproc-per-node", "2"}, one = {"--nproc-per-node", "1"};
  return {
      {"sbatch -n3: a batch script", kBatch, {}, by_nodes, {}},
      {"salloc -n3: a shell on the login node", without(kBatch, "SLURM_PROCID"), {}, by_nodes, {}},
      {"fewer ranks than tasks", kBatch, one, one_each, {}},
      {"sbatch -N2: no number of tasks",
       changed(without(kBatch, "SLURM_NTASKS"), {{"SLURM_TASKS_PER_NODE", "1(x2)"}}),
       {},
       one_each,
       {}},
      {"sbatch -n1 -c2: one task with many cpus", changed(kBatch, one_node), two, two_on_n1, {}},
      {"the same without a number of ranks", changed(kBatch, one_node), {}, {"[n1:0] 0/1"}, {}},
      {"sbatch -N1 -c2: SLURM_NTASKS is not set",
       without(changed(kBatch, one_node), "SLURM_NTASKS"),
       two,
       two_on_n1,
       {}},
      {"a task of a job array",
       changed(kBatch, {{"SLURM_ARRAY_JOB_ID", "6"}, {"SLURM_ARRAY_TASK_ID", "3"}}),
       {},
       by_nodes,
       {}},
      {"srun -n1 -c2", changed(changed(kBatch, one_node), kStepOfOneTask), two, two_here, {}},
      {"srun --pty -n1 in a job of two nodes",
       changed(kBatch, kStepOfOneTask),
       {},
       {"[0] 0/1"},
       {}},
      {"the same with a number of ranks", changed(kBatch, kStepOfOneTask), two, two_here, {}},
      {"srun -n3: one launcher for each task",
       changed(kBatch, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}}),
       {},
       {},
       Says("slurm.started_by_another", "srun", 3)},
      {"salloc's shell in SLURM's interactive step", interactive, {}, by_nodes, {}},
      {"the same without --preserve-env",
       changed(interactive, {{"SLURM_TASKS_PER_NODE", "1"}, {"SLURM_NTASKS", "1"}}),
       {},
       {},
       Says("slurm.tasks_do_not_fit", 1, 2)},
      {"that, with the number",
       changed(interactive, {{"SLURM_TASKS_PER_NODE", "1"}, {"SLURM_NTASKS", "1"}}),
       one,
       one_each,
       {}},
      {"a job of two components, a batch script",
       changed(changed(kBatch, one_node), {{"SLURM_HET_SIZE", "2"}}),
       {},
       {},
       Says("slurm.components", 2, 2)},
      {"a job of two components, salloc",
       without(changed(kBatch, {{"SLURM_HET_SIZE", "2"}}), "SLURM_JOB_NODELIST"),
       {},
       {},
       Says("slurm.components", 2, 2, 1)},
      {"options of srun in variables",
       changed(kBatch, {{"SLURM_LABELIO", "1"},
                        {"SLURM_STDOUTMODE", "none"},
                        {"SLURM_EXACT", "1"},
                        {"SRUN_CPUS_PER_TASK", "1"}}),
       {},
       by_nodes,
       {}},
  };
}

TEST_F(Allocation, of_slurm_is_used_in_each_way_in_which_slurm_starts_a_launcher) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.what);
    Options options = way.options;
    options.insert(options.end(), {"--all-ranks", "--master-addr", "127.0.0.1"});
    const Outcome outcome = run(options, way.variables);
    EXPECT_EQ(outcome.exit_code, way.error ? 2 : 0) << outcome.err;
    if (way.error) {
      EXPECT_THAT(outcome.err, *way.error);
    }
    EXPECT_THAT(lines_of(outcome.out), UnorderedElementsAreArray(way.ranks));
  }
  for (const char* name :
       {"SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_EXACT", "SRUN_CPUS_PER_TASK"}) {
    EXPECT_THAT(calls(), Not(HasSubstr(name)));
  }
}

TEST_F(Allocation, with_one_launcher_for_each_task_is_refused_with_what_to_do) {
  for (const auto& [variables, refusal] :
       std::vector<std::pair<PacelineProcess::Variables, harness::SaysMatcher>>{
           {{{"TORCHELASTIC_RUN_ID", "a"}, {"WORLD_SIZE", "2"}, {"PACELINE_STORE", "h:1"}},
            Says("slurm.started_by_another", "paceline run", 2)},
           {{{"TORCHELASTIC_RUN_ID", "a"}, {"WORLD_SIZE", "2"}},
            Says("slurm.started_by_another", "torchrun", 2)},
           {{{"OMPI_COMM_WORLD_SIZE", "4"}}, Says("slurm.started_by_another", "mpirun", 4)},
           {{{"PMI_SIZE", "2"}}, Says("slurm.started_by_another", "mpiexec", 2)},
           {{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}},
            Says("slurm.started_by_another", "srun", 3)}}) {
    const Outcome outcome = run({}, variables);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, refusal);
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace paceline::launcher
