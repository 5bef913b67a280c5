// Data, tensor and pipeline parallelism at once, with an optimizer divided among the replicas:
// eight ranks follow the loss curve of one process.

#include <optional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/collectives/group/device_mesh.h"
#include "paceline/models/gpt_stage.h"
#include "paceline/optim/adam.h"
#include "paceline/pipeline/pipeline.h"
#include "paceline/pipeline/tied_weights.h"
#include "paceline/schedules/named_plans.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor_parallel/layers.h"
#include "paceline/tensor_parallel/vocab_parallel_loss.h"

#include "tests/harness/thread_ranks.h"
#include "tests/tensor_parallel/dense_and_parallel.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using Tensors = PipelineStage::Tensors;

constexpr int kMicroBatches = 4, kMeshSteps = 50;
constexpr std::int64_t kBatch = 8, kPositions = 8, kWords = 16;

models::GptOptions four_blocks() {
  return {.vocabulary = kWords,
          .context = kPositions,
          .layers = 4,
          .width = 16,
          .heads = 4,
          .dropout = 0};
}

at::Tensor batch_of(std::int64_t step) { return pattern_of(step, kBatch, kPositions, kWords); }

optim::AdamW adam_of(const std::vector<at::Tensor>& parameters) {
  return optim::AdamW(parameters, optim::AdamOptions{.lr = 3e-3, .weight_decay = 0.01});
}

std::vector<double> losses_of_one_process() {
  models::Gpt model = seeded(6, [] { return models::Gpt(four_blocks()); });
  auto optimizer = adam_of(model->parameters());
  std::vector<double> losses;
  for (int step = 0; step < kMeshSteps; ++step) {
    const at::Tensor text = batch_of(step);
    optimizer.zero_grad();
    const at::Tensor loss = models::next_token_loss(model->forward(text.narrow(1, 0, kPositions)),
                                                    text.narrow(1, 1, kPositions));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// One rank's part in the training.
class MeshTraining {
 public:
  MeshTraining(const GroupPtr& world, const std::vector<MeshAxis>& axes, const char* schedule,
               bool sequence_parallel)
      : mesh_(world, axes),
        stage_(make_stage_model(sequence_parallel)),
        pipeline_(mesh_.group("pp"),
                  pipeline::make_plan(schedule, {mesh_.size("pp"), kMicroBatches}),
                  {make_stage(mesh_.rank("pp"), stage_)}),
        tied_(*mesh_.group("pp"), stage_->tied_weights()),
        optimizer_(adam_of(stage_->parameters())) {
    optimizer_.shard(mesh_.group("dp"));
  }

  // The mean loss of all replicas; nothing on ranks without the last stage.
  std::optional<double> step(const at::Tensor& text) {
    const std::int64_t share = kBatch / mesh_.size("dp");
    const at::Tensor own = text.narrow(0, share * mesh_.rank("dp"), share);
    const auto inputs = split_micro_batches(own.narrow(1, 0, kPositions), kMicroBatches);
    const auto targets = own.narrow(1, 1, kPositions).chunk(kMicroBatches);
    optimizer_.zero_grad();
    const auto result = pipeline_.step(
        stage_->is_first() ? inputs : std::vector<Tensors>{}, [&](const Tensors& outputs, int i) {
          return vocab_parallel_cross_entropy(mesh_.group("tp"), outputs[0],
                                              targets[static_cast<std::size_t>(i)]);
        });
    tied_.add_gradients();
    for (const at::Tensor& parameter : stage_->parameters())
      all_reduce(*mesh_.group("dp"), parameter.grad(), ReduceOp::kMean);
    optimizer_.step();
    if (result.losses.empty()) return {};
    const double sum = torch::stack(result.losses).mean().item<double>();
    return all_reduce_value(*mesh_.group("dp"), sum) / mesh_.size("dp");
  }

 private:
  models::GptStage make_stage_model(bool sequence_parallel) {
    const auto layers = tensor_parallel_layers(
        mesh_.group("tp"), {.sequence_parallel = sequence_parallel, .gather_logits = false});
    const auto range = models::gpt_stage_range(four_blocks(), mesh_.rank("pp"), mesh_.size("pp"));
    return seeded(6, [&] { return models::GptStage(four_blocks(), layers, range); });
  }

  DeviceMesh mesh_;
  models::GptStage stage_;
  Pipeline pipeline_;
  TiedWeights tied_;
  optim::AdamW optimizer_;
};

struct MeshCase {
  std::vector<MeshAxis> axes;
  const char* schedule = "1f1b";
  bool sequence_parallel = false;
};

class MeshTrainingTest : public testing::TestWithParam<MeshCase> {};

TEST_P(MeshTrainingTest, the_loss_curve_is_that_of_one_process) {
  static const std::vector<double> wanted = losses_of_one_process();
  EXPECT_LT(wanted.back(), 0.8 * wanted.front());
  int ranks = 1;
  for (const MeshAxis& axis : GetParam().axes) ranks *= axis.size;
  run_ranks_ok(ranks, [&](ProcessGroup& world) {
    MeshTraining training(borrowed(world), GetParam().axes, GetParam().schedule,
                          GetParam().sequence_parallel);
    for (int step = 0; step < kMeshSteps; ++step) {
      const auto loss = training.step(batch_of(step));
      if (loss) {
        EXPECT_NEAR(*loss, wanted[static_cast<std::size_t>(step)], 1e-4) << "step " << step;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshTrainingTest,
    testing::Values(MeshCase{{{"pp", 2}, {"dp", 2}, {"tp", 2}}},
                    MeshCase{{{"pp", 2}, {"dp", 2}, {"tp", 2}}, "zero-bubble", true},
                    MeshCase{{{"pp", 4}, {"dp", 1}, {"tp", 2}}, "gpipe", true},
                    MeshCase{{{"dp", 2}, {"tp", 1}, {"pp", 2}}},
                    MeshCase{{{"pp", 1}, {"dp", 1}, {"tp", 4}}}));

}  // namespace
}  // namespace paceline
