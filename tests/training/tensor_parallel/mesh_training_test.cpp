// Data, tensor and pipeline parallelism together in the loop of train::TrainingRun: the loss curve
// is that of one process.

#include <cmath>
#include <csignal>
#include <functional>
#include <optional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/data/dataset.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/model_parts.h"
#include "paceline/training/train/pipeline_gradients.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor_parallel/dense_and_parallel.h"

namespace paceline::train {
namespace {

using harness::run_ranks_ok;
using harness::Says;

constexpr std::int64_t kPositions = 8, kWords = 16, kSequences = 400;

struct MeshCase {
  std::vector<MeshAxis> axes;
  std::string schedule = "1f1b";
  int stages_per_rank = 1;
  bool sequence_parallel = false;
  std::string optimizer = "adamw";
  double lr = 6e-3;
  StepOptions step = {};
  int shard = 0;
  std::int64_t batch = 8;
  int steps = 15;

  int size(const std::string& axis) const {
    for (const MeshAxis& one : axes) {
      if (one.name == axis) return one.size;
    }
    return 1;
  }
  int num_ranks() const { return size("pp") * size("dp") * size("tp"); }
};

models::GptOptions four_blocks() {
  return {.vocabulary = kWords,
          .context = kPositions,
          .layers = 4,
          .width = 16,
          .heads = 4,
          .dropout = 0};
}

std::unique_ptr<data::DataLoader> loader_of(const MeshCase& job, int replicas, int replica) {
  const at::Tensor text = pattern_of(1, kSequences, kPositions, kWords);
  const auto dataset = std::make_shared<data::TensorDataset>(
      "pattern", std::vector<at::Tensor>{text.narrow(1, 0, kPositions).contiguous(),
                                         text.narrow(1, 1, kPositions).contiguous()});
  return std::make_unique<data::DataLoader>(
      dataset, data::DistributedSampler(kSequences, replicas, replica, {.seed = 2}),
      data::DataLoaderOptions{.global_batch_size = job.batch});
}

std::unique_ptr<optim::Optimizer> optimizer_of(const MeshCase& job,
                                               const std::vector<at::Tensor>& parameters) {
  return make_optimizer({.name = job.optimizer, .lr = job.lr, .weight_decay = 0.01}, parameters);
}

// Runs the loop with clipping, and returns the losses of all replicas.
std::vector<double> train(const MeshCase& job, data::DataLoader& loader, StepGradients& gradients,
                          optim::Optimizer& optimizer) {
  TrainingStep step(job.step, optimizer, job.steps);
  TrainingState state;
  PhaseTimes times;
  std::vector<double> losses;
  run_loop({.epochs = 100, .max_steps = job.steps}, state, loader, gradients, optimizer, times,
           {.scale_loss = [&](const at::Tensor& loss) { return step.scaled(loss); },
            .take_step = [&] { step.take(); },
            .after_step = [&](const StepReport& report) { losses.push_back(report.loss); }});
  return losses;
}

std::vector<double> losses_of_one_process(const MeshCase& job) {
  std::vector<double> losses;
  run_ranks_ok(1, [&](ProcessGroup& group) {
    models::Gpt model = seeded(6, [] { return models::Gpt(four_blocks()); });
    const auto loader = loader_of(job, 1, 0);
    const auto optimizer = optimizer_of(job, model->parameters());
    DistributedDataParallel<models::GptImpl> replicas(model, borrowed(group));
    const auto gradients = backward_passes(
        [&](const data::Batch& batch) {
          return models::next_token_loss(replicas.forward(batch.data), batch.target);
        },
        replicas);
    losses = train(job, *loader, *gradients, *optimizer);
  });
  return losses;
}

// One rank's part of the training.
class MeshTraining {
 public:
  MeshTraining(const GroupPtr& world, const MeshCase& job)
      : job_(job),
        mesh_(world, job.axes),
        stages_(make_stages()),
        module_(models::one_module(stages_)),
        pipeline_(mesh_.group("pp"),
                  pipeline_schedule(job.schedule, job.size("pp"), 4, job.stages_per_rank),
                  pipeline_stages()),
        tied_(*mesh_.group("pp"), tied_weights()),
        optimizer_(optimizer_of(job, module_->parameters())) {
    const bool counts_tied = mesh_.rank("pp") == 0;
    optimizer_->set_model_parts(
        model_parts(*module_, mesh_.sub_mesh({"pp", "tp"}).world(), mesh_.group("tp"),
                    counts_tied ? std::vector<at::Tensor>{} : tied_weights()));
    PipelineGradientsOptions options{.replicas = mesh_.group("dp"), .tied = &tied_};
    options.shard.stage = job.shard;
    gradients_.emplace(
        pipeline_,
        [this](const Pipeline::Tensors& outputs, const data::Batch& part) {
          if (before_loss) before_loss();
          return vocab_loss(outputs[0], part) * loss_factor;
        },
        *optimizer_, options);
  }

  // The losses of each step.
  std::vector<double> losses() {
    const auto loader = loader_of(job_, mesh_.size("dp"), mesh_.rank("dp"));
    return train(job_, *loader, *gradients_, *optimizer_);
  }

  double test_loss(const data::Batch& batch) {
    module_->eval();
    return gradients_->evaluate(batch).item<double>();
  }

  const DeviceMesh& mesh() const { return mesh_; }
  PipelineGradients& gradients() { return *gradients_; }
  double loss_factor = 1;
  std::function<void()> before_loss = {};  // called on the rank that has the losses

 private:
  at::Tensor vocab_loss(const at::Tensor& logits, const data::Batch& part) const {
    return vocab_parallel_cross_entropy(mesh_.group("tp"), logits, part.target);
  }

  std::vector<models::GptStage> make_stages() {
    const auto layers = tensor_parallel_layers(
        mesh_.group("tp"), {.sequence_parallel = job_.sequence_parallel, .gather_logits = false});
    const int count = job_.size("pp") * job_.stages_per_rank;
    std::vector<models::GptStage> stages;
    for (int stage = mesh_.rank("pp"); stage < count; stage += job_.size("pp")) {
      const auto range = models::BlockRange::of_stage(four_blocks().layers, stage, count);
      stages.push_back(seeded(6, [&] { return models::GptStage(four_blocks(), layers, range); }));
    }
    return stages;
  }

  std::vector<PipelineStage> pipeline_stages() const {
    std::vector<PipelineStage> result;
    int index = mesh_.rank("pp");
    for (const models::GptStage& stage : stages_) {
      result.push_back(make_stage(index, stage));
      index += job_.size("pp");
    }
    return result;
  }

  std::vector<at::Tensor> tied_weights() const {
    std::vector<at::Tensor> tied;
    for (const models::GptStage& stage : stages_) {
      for (const at::Tensor& weight : stage->tied_weights()) tied.push_back(weight);
    }
    return tied;
  }

  const MeshCase job_;
  DeviceMesh mesh_;
  const std::vector<models::GptStage> stages_;
  const std::shared_ptr<torch::nn::Module> module_;
  Pipeline pipeline_;
  TiedWeights tied_;
  const std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<PipelineGradients> gradients_;
};

class MeshTrainingTest : public testing::TestWithParam<MeshCase> {};

TEST_P(MeshTrainingTest, the_loss_curve_is_that_of_one_process) {
  const MeshCase& job = GetParam();
  const std::vector<double> wanted = losses_of_one_process(job);
  ASSERT_EQ(wanted.size(), static_cast<std::size_t>(job.steps));
  EXPECT_LT(wanted.back(), 0.9 * wanted.front());
  run_ranks_ok(job.num_ranks(), [&](ProcessGroup& world) {
    const std::vector<double> found = MeshTraining(borrowed(world), job).losses();
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t step = 0; step < found.size(); ++step) {
      EXPECT_NEAR(found[step], wanted[step], 1e-4) << "step " << step;
    }
  });
}

const std::vector<MeshAxis> kEight{{"pp", 2}, {"dp", 2}, {"tp", 2}};

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshTrainingTest,
    testing::Values(
        MeshCase{kEight}, MeshCase{kEight, "zero-bubble", 1, true},
        MeshCase{.axes = kEight, .step = {.clip_norm = 0.25}},
        MeshCase{.axes = kEight,
                 .optimizer = "lamb",
                 .lr = 0.04,
                 .step = {.clip_norm = 0.25},
                 .shard = 1,
                 .steps = 30},
        MeshCase{.axes = kEight, .step = {.clip_norm = 0.25, .scales_loss = true}, .shard = 2},
        // Each replica has 5 samples in 4 micro-batches; then 3 samples in 4.
        MeshCase{.axes = {{"dp", 2}, {"tp", 1}, {"pp", 2}}, .batch = 10},
        MeshCase{.axes = {{"dp", 2}, {"tp", 1}, {"pp", 2}}, .shard = 2, .batch = 6},
        MeshCase{{{"pp", 4}, {"dp", 1}, {"tp", 2}}, "gpipe", 1, true},
        MeshCase{.axes = {{"dp", 1}, {"tp", 1}, {"pp", 2}},
                 .schedule = "interleaved-1f1b",
                 .stages_per_rank = 2,
                 .optimizer = "lamb",
                 .lr = 0.04,
                 .steps = 30},
        MeshCase{{{"pp", 1}, {"dp", 1}, {"tp", 4}}}));

TEST(ModelParts, need_the_group_of_the_layers) {
  torch::nn::Linear net(2, 1);
  expect_error(ErrorCode::kInvalid, {"model_parts: `layers` is null"},
               [&] { model_parts(*net, nullptr, nullptr); });
}

TEST(PipelineGradients, a_test_loss_is_the_batchs_on_every_rank_and_leaves_no_gradients) {
  const MeshCase job{.axes = kEight};
  data::Batch batch;
  // 7 samples, which 4 micro-batches do not divide evenly
  const at::Tensor text = pattern_of(3, 7, kPositions, kWords);
  batch.tensors = {text.narrow(1, 0, kPositions).contiguous(),
                   text.narrow(1, 1, kPositions).contiguous()};
  batch.data = batch.tensors[0];
  batch.target = batch.tensors[1];
  models::Gpt whole = seeded(6, [] { return models::Gpt(four_blocks()); });
  const double wanted =
      models::next_token_loss(whole->forward(batch.data), batch.target).item<double>();
  run_ranks_ok(8, [&](ProcessGroup& world) {
    MeshTraining training(borrowed(world), job);
    EXPECT_NEAR(training.test_loss(batch), wanted, 1e-5);
  });
}

// One pipeline's loss is not a number: every rank of all pipelines learns which pipeline's.
TEST(PipelineGradients, a_loss_that_is_not_finite_is_told_with_replica_and_micro_batch) {
  const MeshCase job{.axes = kEight, .steps = 2};
  testing::internal::CaptureStderr();
  run_ranks_ok(8, [&](ProcessGroup& world) {
    MeshTraining training(borrowed(world), job);
    if (training.mesh().rank("dp") == 1) training.loss_factor = NAN;
    for (const double loss : training.losses()) EXPECT_TRUE(std::isnan(loss));
  });
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, Says("pipeline.loss_not_finite", 0, 1, 2, 1, "nan", 1));
}

TEST(PipelineGradients, a_loss_that_throws_is_told_on_every_rank) {
  const MeshCase job{.axes = kEight, .steps = 2};
  for (const auto& result : harness::run_ranks(8, [&](ProcessGroup& world) {
         MeshTraining training(borrowed(world), job);
         if (training.mesh().rank("dp") == 1)
           training.before_loss = [] { throw std::runtime_error("out of luck"); };
         training.losses();
       })) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), testing::AllOf(Says("pipeline.loss_failed", "1F0"),
                                                     testing::HasSubstr("out of luck")));
  }
}

// Micro-batches are in flight in both pipelines; rank 3 has the last stage of the second one.
TEST(MeshProcesses, a_rank_that_dies_within_a_step_is_named_by_all_others) {
  at::set_num_threads(1);
  const MeshCase job{.axes = {{"dp", 2}, {"tp", 1}, {"pp", 2}}};
  const auto results = harness::run_process_ranks(4, [&](ProcessGroup& world) -> std::string {
    MeshTraining training(borrowed(world), job);
    int losses = 0;
    if (world.rank() == 3) {
      training.before_loss = [&losses] {
        if (++losses == 7) ::kill(::getpid(), SIGKILL);
      };
    }
    training.losses();
    return "no error";
  });
  EXPECT_EQ(results[3].signal, SIGKILL);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(results[rank].threw);
    EXPECT_THAT(results[rank].report, testing::HasSubstr("rank 3")) << rank;
  }
}

}  // namespace
}  // namespace paceline::train
