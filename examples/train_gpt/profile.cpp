#include "examples/train_gpt/profile.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <torch/torch.h>

#include "paceline/models/gpt_stage.h"
#include "paceline/tensor/autocast.h"
#include "paceline/tensor/random.h"
#include "paceline/train/layer_meter.h"
#include "paceline/train/named_choices.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {
namespace {

namespace models = paceline::models;
namespace planning = paceline::planning;
namespace train = paceline::train;

// Stages of a model of three blocks: the first with the embeddings, one in the middle, the last
// with the logits and the loss.
class Stages {
 public:
  Stages(const Options& options, std::int64_t vocabulary, std::int64_t samples)
      : samples_(samples),
        precision_(train::precision_of(options.training.precision)),
        gpt_{.vocabulary = vocabulary,
             .context = options.context,
             .layers = 3,
             .width = options.width,
             .heads = options.heads,
             .dropout = options.dropout} {}

  planning::LayerProfile measure(const char* name, std::int64_t index) {
    models::GptStage stage(gpt_, models::Layers{.dropout = paceline::dropout},
                           models::GptRange{index, index + 1});
    for (auto& parameter : stage->parameters())
      parameter.set_data(parameter.to(precision_.parameters));
    return train::measure_layer(
        {.name = name,
         .module = *stage,
         .make_input =
             [&](std::int64_t samples) {
               return index == 0 ? tokens(samples)
                                 : at::randn({samples, gpt_.context, gpt_.width},
                                             at::dtype(precision_.parameters));
             },
         .forward =
             [&](const at::Tensor& input) {
               std::optional<paceline::Autocast> casting;
               if (precision_.autocast) casting.emplace(*precision_.autocast);
               const at::Tensor output = stage->forward(input);
               return stage->is_last()
                          ? models::next_token_loss(output.to(at::kFloat), tokens(input.size(0)))
                          : output;
             }},
        samples_);
  }

  // The share of a block's time in its norms and residual sums, which every rank computes whole.
  double share_of_whole_parts(const planning::LayerProfile& block) const {
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({gpt_.width}));
    const at::Tensor states =
        torch::randn({samples_, gpt_.context, gpt_.width}, torch::requires_grad());
    const at::Tensor gradient = at::ones({samples_, gpt_.context, gpt_.width});
    const double seconds =
        2 * train::least_seconds([&] { (states + norm->forward(states)).backward(gradient); });
    const auto n = static_cast<double>(samples_);
    return std::min(1.0, seconds / (block.forward.of(n) + block.backward.of(n)));
  }

  // Bytes of a sample's states.
  double state_bytes() const {
    return static_cast<double>(gpt_.context * gpt_.width) *
           static_cast<double>(at::elementSize(precision_.parameters));
  }

 private:
  at::Tensor tokens(std::int64_t samples) const {
    return at::randint(gpt_.vocabulary, {samples, gpt_.context}, at::kLong);
  }

  const std::int64_t samples_;
  const train::Precision precision_;
  const models::GptOptions gpt_;
};

double share(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0;
}

}  // namespace

void describe_gpt(const Options& options, std::int64_t vocabulary, std::int64_t samples,
                  planning::JobProfile& profile) {
  // Of a block's parameters norms and the last biases of both branches are whole on every rank, of
  // its activations inputs and outputs of the norms.
  constexpr int kWholeRowsOfParameters = 6, kWholeStates = 4;
  const auto width = static_cast<double>(options.width);
  Stages stages(options, vocabulary, samples);
  planning::LayerProfile block = stages.measure("block", 1);
  planning::LayerProfile embedding = train::without(stages.measure("embedding", 0), block);
  planning::LayerProfile logits = train::without(stages.measure("logits", 2), block);
  block.is_block = true;
  const double whole_states = kWholeStates * stages.state_bytes();
  block.divisible = {.time = 1 - stages.share_of_whole_parts(block),
                     .parameters = 1 - share(kWholeRowsOfParameters * width,
                                             static_cast<double>(block.parameters)),
                     .activations = 1 - share(whole_states, block.activation_bytes)};
  block.exchanges = 2;
  embedding.divisible.parameters =
      share(static_cast<double>(vocabulary) * width, static_cast<double>(embedding.parameters));
  embedding.exchanges = 1;  // forward; the logits have theirs backward
  logits.tied_parameters = vocabulary * options.width;
  logits.divisible = {.time = 1,
                      .parameters = share(static_cast<double>(logits.tied_parameters),
                                          static_cast<double>(logits.parameters)),
                      .activations = 1 - share(stages.state_bytes(), logits.activation_bytes)};
  profile.program = "train_gpt";
  profile.layers = {embedding};
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    block.name = "block " + std::to_string(layer);
    profile.layers.push_back(block);
  }
  profile.layers.push_back(logits);
  profile.most_parts = std::gcd(options.heads, vocabulary);
  profile.shard_stages = {0, 1, 2, 3};
  profile.schedules = {"1f1b", "zero-bubble", "gpipe"};
}

}  // namespace train_gpt
