#include "examples/train_gpt/profile.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/train/dry_run.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {
namespace {

namespace models = paceline::models;
namespace planning = paceline::planning;
namespace train = paceline::train;

models::GptOptions three_blocks(const Options& options, std::int64_t vocabulary) {
  return {.vocabulary = vocabulary,
          .context = options.context,
          .layers = 3,
          .width = options.width,
          .heads = options.heads,
          .dropout = options.dropout};
}

// Block `index` as a stage. The first block includes the embeddings, the last one the logits.
paceline::PipelineStage stage_of(const models::GptOptions& gpt, const train::Precision& precision,
                                 int index) {
  models::GptStage stage(gpt, models::Layers{.dropout = paceline::dropout},
                         models::BlockRange{index, index + 1});
  for (auto& parameter : stage->parameters())
    parameter.set_data(parameter.to(precision.parameters));
  return {.index = index,
          .forward =
              [stage, precision](const paceline::PipelineStage::Tensors& inputs) mutable {
                std::optional<paceline::Autocast> casting;
                if (precision.autocast) casting.emplace(*precision.autocast);
                return paceline::PipelineStage::Tensors{stage->forward(inputs.at(0))};
              },
          .parameters = stage->parameters()};
}

// Measures the embeddings with a block, a block alone, and a block with the logits and the loss.
std::vector<planning::LayerProfile> measure_stages(paceline::ProcessGroup& group,
                                                   const models::GptOptions& gpt,
                                                   const train::Precision& precision,
                                                   std::int64_t samples) {
  train::LayerChain chain{.make_input =
                              [&](std::int64_t count) {
                                return at::randint(gpt.vocabulary, {count, gpt.context}, at::kLong);
                              },
                          .loss =
                              [&](const auto& outputs, int) {
                                const at::Tensor tokens = at::randint(
                                    gpt.vocabulary, {outputs[0].size(0), gpt.context}, at::kLong);
                                return models::next_token_loss(outputs[0].to(at::kFloat), tokens);
                              }};
  for (int index = 0; index < 3; ++index) chain.layers.push_back(stage_of(gpt, precision, index));
  return train::profile_layers(group, chain, samples);
}

// The share of a block's time that its norms and residual sums take. They are not divided: every
// rank computes all of them.
double share_of_whole_parts(const models::GptOptions& gpt, std::int64_t samples,
                            const planning::LayerProfile& block) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({gpt.width}));
  const at::Tensor states = torch::randn({samples, gpt.context, gpt.width}, torch::requires_grad());
  const at::Tensor gradient = at::ones({samples, gpt.context, gpt.width});
  const double seconds =
      2 * train::least_seconds([&] { (states + norm->forward(states)).backward(gradient); });
  const auto n = static_cast<double>(samples);
  return std::min(1.0, seconds / (block.forward.of(n) + block.backward.of(n)));
}

double share(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
}

}  // namespace

void describe_gpt(paceline::ProcessGroup& group, const Options& options, std::int64_t vocabulary,
                  std::int64_t samples, planning::JobProfile& profile) {
  // Some parts of a block are not divided among the ranks: the norms' parameters, the last biases
  // of both branches, and the inputs and outputs of the norms.
  constexpr int kWholeRowsOfParameters = 6, kWholeStates = 4;
  const models::GptOptions gpt = three_blocks(options, vocabulary);
  const train::Precision precision = train::precision_of(options.training.precision);
  const auto width = static_cast<double>(gpt.width);
  const double state_bytes = static_cast<double>(gpt.context) * width *
                             static_cast<double>(at::elementSize(precision.parameters));
  const auto stages = measure_stages(group, gpt, precision, samples);
  planning::LayerProfile block = stages[1];
  block.is_block = true;
  block.divisible = {.time = 1 - share_of_whole_parts(gpt, samples, block),
                     .parameters = 1 - share(kWholeRowsOfParameters * width,
                                             static_cast<double>(block.parameters)),
                     .activations = 1 - share(kWholeStates * state_bytes, block.activation_bytes)};
  block.exchanges = 2;
  planning::LayerProfile embedding = train::subtract(stages[0], block);
  embedding.name = "embedding";
  embedding.divisible.parameters =
      share(static_cast<double>(vocabulary) * width, static_cast<double>(embedding.parameters));
  embedding.exchanges = 1;  // in the forward pass; the logits need one in the backward pass
  planning::LayerProfile logits = train::subtract(stages[2], block);
  logits.name = "logits";
  logits.tied_parameters = vocabulary * gpt.width;
  logits.divisible = {.time = 1,
                      .parameters = share(static_cast<double>(logits.tied_parameters),
                                          static_cast<double>(logits.parameters)),
                      .activations = 1 - share(state_bytes, logits.activation_bytes)};
  profile.program = "train_gpt";
  profile.layers = {embedding};
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    block.name = "block " + std::to_string(layer);
    profile.layers.push_back(block);
  }
  profile.layers.push_back(logits);
  profile.most_parts = std::gcd(options.heads, vocabulary);
  profile.shard_stages = {0, 1, 2, 3};
  profile.schedules = {"1f1b", "zero-bubble", "gpipe", std::string(planning::kSearched)};
}

}  // namespace train_gpt
