// `paceline run` inside a SLURM job, with a command that stands for srun, and inside MPI jobs.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    directory.write("srun", "#!/bin/bash\necho \"$@\" >> " + directory.file("calls") +
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
  // Both "nodes" are this machine, which the address says; srun would make the names reach them.
  const PacelineProcess::Variables two_nodes = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "2,1"}};
};

TEST_F(Allocation, of_slurm_gives_its_nodes_and_tasks) {
  const Outcome outcome = run({"--all-ranks", "--master-addr", "127.0.0.1"}, two_nodes);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> lines;
  std::istringstream stream(outcome.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, ElementsAre("[n1:0] 0/3", "[n1:1] 1/3", "[n2:2] 2/3"));
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
  EXPECT_THAT(nodes.err, HasSubstr("--nnodes: 3, but the SLURM job has 2 nodes"));
  const Outcome list = run({}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1;x"}});
  EXPECT_EQ(list.exit_code, 2);
  EXPECT_THAT(list.err, HasSubstr("SLURM_JOB_NODELIST='n[1;x' is not a list of nodes"));
  auto tasks = two_nodes;
  tasks["SLURM_TASKS_PER_NODE"] = "2";
  EXPECT_THAT(run({}, tasks).err, HasSubstr("SLURM_TASKS_PER_NODE='2' does not fit 2 nodes"));
}

TEST_F(Allocation, with_one_launcher_for_each_task_is_refused_with_what_to_do) {
  for (const auto& [variables, launcher] :
       std::vector<std::pair<PacelineProcess::Variables, std::string>>{
           {{{"TORCHELASTIC_RUN_ID", "a"}, {"WORLD_SIZE", "2"}, {"PACELINE_STORE", "h:1"}},
            "paceline run has started 2 of this launcher"},
           {{{"TORCHELASTIC_RUN_ID", "a"}, {"WORLD_SIZE", "2"}},
            "torchrun has started 2 of this launcher"},
           {{{"OMPI_COMM_WORLD_SIZE", "4"}}, "mpirun has started 4 of this launcher"},
           {{{"PMI_SIZE", "2"}}, "mpiexec has started 2 of this launcher"},
           {{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "3"}},
            "srun has started 3 of this launcher"}}) {
    const Outcome outcome = run({}, variables);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(launcher));
    EXPECT_THAT(outcome.err, HasSubstr("start the program itself with"));
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace paceline::launch
