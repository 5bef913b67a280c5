// The variables that Kubernetes' training operators set in their pods, without any change.

#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/process/rank_resources.h"

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using testing::HasSubstr;
using Variables = PacelineProcess::Variables;

constexpr int kPods = 2;

class TrainingOperators : public testing::Test {
 protected:
  TrainingOperators() : secret(directory.write("secret", "0123456789abcdef0123456789abcdef\n")) {
    std::filesystem::permissions(secret, std::filesystem::perms(0600));
  }

  // Runs two pods with these variables, where "*" stands for the number of the pod. Returns their
  // outputs.
  std::vector<std::string> run(const Variables& variables,
                               const std::vector<std::string>& arguments,
                               const std::string& command = PACELINE_COMMAND) {
    std::vector<std::unique_ptr<PacelineProcess>> pods;
    for (int pod = 0; pod < kPods; ++pod) {
      Variables own = {{"PACELINE_SECRET_FILE", secret}, {"PYTHONUNBUFFERED", "1"}};
      for (const auto& [name, value] : variables) {
        own[name] = value == "*" ? std::to_string(pod) : value;
      }
      pods.push_back(std::make_unique<PacelineProcess>(arguments, own, command));
    }
    std::vector<std::string> outputs;
    for (const auto& pod : pods) {
      const Outcome outcome = pod->wait();
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      outputs.push_back(outcome.out);
    }
    return outputs;
  }
  static std::string free_port() { return std::to_string(reserve_port(0).port); }

  FreshDirectory directory;
  std::string secret;
};

const std::vector<std::string> kProgram = {
    "run", "--all-ranks", "sh", "-c",
    "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE here; "
    "exec " RECORDED_PROGRAM " ends"};

// Kubeflow Trainer, version 2.
TEST_F(TrainingOperators, of_version_2_start_a_launcher_in_each_pod) {
  const auto outputs = run({{"PET_NNODES", "2"},
                            {"PET_NPROC_PER_NODE", "2"},
                            {"PET_NODE_RANK", "*"},
                            {"PET_MASTER_ADDR", "127.0.0.1"},
                            {"PET_MASTER_PORT", free_port()}},
                           kProgram);
  EXPECT_THAT(outputs[0], HasSubstr("[1] 1 of 4, 1 of 2 here\n"));
  EXPECT_THAT(outputs[0], HasSubstr("[0] waiting\n"));
  EXPECT_THAT(outputs[1], HasSubstr("[2] 2 of 4, 0 of 2 here\n"));
}

// The training operator, version 1, with several processes on each node: RANK and WORLD_SIZE count
// pods.
TEST_F(TrainingOperators, of_version_1_number_pods_beside_the_options) {
  const auto outputs = run({{"PET_NNODES", "2"},
                            {"PET_NPROC_PER_NODE", "2"},
                            {"PET_NODE_RANK", "*"},
                            {"PET_MASTER_ADDR", "127.0.0.1"},
                            {"PET_MASTER_PORT", free_port()},
                            {"RANK", "*"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", free_port()}},
                           kProgram);
  EXPECT_THAT(outputs[0], HasSubstr("[1] 1 of 4, 1 of 2 here\n"));
  EXPECT_THAT(outputs[1], HasSubstr("[3] 3 of 4, 1 of 2 here\n"));
}

// As above, but with an elastic policy: no variable distinguishes the pods.
TEST_F(TrainingOperators, of_version_1_let_elastic_pods_meet) {
  const auto outputs = run({{"PET_NNODES", "2:2"},
                            {"PET_NPROC_PER_NODE", "2"},
                            {"PET_RDZV_ENDPOINT", "127.0.0.1:" + free_port()},
                            {"PET_RDZV_BACKEND", "c10d"},
                            {"PET_RDZV_ID", "train"},
                            {"PET_RDZV_CONF", "last_call_timeout=1,join_timeout=20"},
                            {"PET_MAX_RESTARTS", "3"}},
                           kProgram);
  for (int rank = 0; rank < 2 * kPods; ++rank) {
    EXPECT_THAT(outputs[0] + outputs[1], HasSubstr(fmt::format("[{0}] {0} of 4, ", rank)));
  }
  EXPECT_THAT(outputs[0] + outputs[1], HasSubstr("[0] waiting\n"));
}

// As above, but with one process in each pod and without a launcher.
TEST_F(TrainingOperators, of_version_1_start_the_program_itself) {
  const auto outputs = run({{"RANK", "*"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", free_port()}},
                           {"ends"}, RECORDED_PROGRAM);
  EXPECT_EQ(outputs[0] + outputs[1], "waiting\n");
}

}  // namespace
}  // namespace paceline::launcher
