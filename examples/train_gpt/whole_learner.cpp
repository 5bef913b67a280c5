#include <optional>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor_parallel/full_state_dict.h"
#include "paceline/training/train/model_parts.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_gpt/learner.h"

namespace train_gpt {
namespace {

namespace models = paceline::models;
namespace train = paceline::train;

// Maps tokens [N, T] to logits in float32, computed with the precision that the flags choose.
class Model : public torch::nn::Module {
 public:
  Model(const Options& options, std::int64_t vocabulary,
        const std::shared_ptr<paceline::ProcessGroup>& parts)
      : parts_(parts),
        precision_(train::precision_of(options.training.precision)),
        gpt_(gpt_options(options, vocabulary), layers()) {
    register_module("gpt", gpt_);
    for (auto& parameter : parameters()) parameter.set_data(parameter.to(precision_.parameters));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    std::optional<paceline::Autocast> casting;
    if (precision_.autocast) casting.emplace(*precision_.autocast);
    return gpt_->forward(tokens).to(at::kFloat);
  }

  at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens, std::uint64_t seed) {
    gathers_logits_ = true;
    const at::Tensor all =
        sample_from(gpt_, prompt.to(parameters().front().device()), tokens, seed).cpu();
    gathers_logits_ = false;
    return all;
  }

  models::GptImpl& gpt() { return *gpt_; }

  paceline::StateDict weights() { return paceline::full_state_dict(*gpt_, *parts_); }

 private:
  models::Layers layers() {
    models::Layers layers = layers_for(parts_);
    if (parts_->world_size() == 1) return layers;
    layers.logits = [this, logits_of_part = layers.logits](const at::Tensor& states,
                                                           const at::Tensor& weight,
                                                           const at::Tensor& bias) {
      const at::Tensor part = logits_of_part(states, weight, bias);
      return gathers_logits_ ? paceline::all_gather_autograd(parts_, part, -1) : part;
    };
    return layers;
  }

  const std::shared_ptr<paceline::ProcessGroup> parts_;  // also kept alive by the mesh
  const train::Precision precision_;
  bool gathers_logits_ = false;  // false in training, which needs only this rank's part
  models::Gpt gpt_;
};

class WholeLearner : public Learner {
 public:
  WholeLearner(const Options& options, std::int64_t vocabulary, const paceline::DeviceMesh& mesh)
      : parts_(mesh.group("tp")),
        network_(make_network(options, vocabulary, mesh)),
        optimizer_(train::make_optimizer(options.training.optimizer, network_->parameters())),
        model_(paceline::fully_shard(
            network_, mesh.group("dp"), *optimizer_,
            {.stage = options.shard,
             .shard_across_hosts = options.shard_across_hosts,
             .data_parallel = {.logical_shards = options.training.loading.logical_shards}})) {
    if (parts_->world_size() > 1) {
      optimizer_->set_model_parts(train::model_parts(*network_, parts_, parts_));
    }
    if (const auto hook = train::make_hook(options.training.hook)) model_.register_comm_hook(hook);
  }

  // Uses the same parameter names as the stages of a pipeline.
  torch::nn::Module& module() override { return network_->gpt(); }
  paceline::optim::Optimizer& optimizer() override { return *optimizer_; }
  std::shared_ptr<train::StepGradients> gradients() override {
    return train::backward_passes([this](const auto& batch) { return test_loss(batch); }, model_);
  }
  at::Tensor test_loss(const paceline::data::Batch& batch) override {
    return loss_of(parts_, model_(batch.data), batch.target);
  }
  paceline::StateDict weights() override { return network_->weights(); }
  at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens, std::uint64_t seed) override {
    return network_->generate(prompt, tokens, seed);
  }

 private:
  static std::shared_ptr<Model> make_network(const Options& options, std::int64_t vocabulary,
                                             const paceline::DeviceMesh& mesh) {
    torch::manual_seed(options.training.seed);  // the initial weights are the same for every mesh
    auto network = std::make_shared<Model>(options, vocabulary, mesh.group("tp"));
    network->to(options.training.loading.device);
    // For dropout: different samples get different random numbers.
    torch::manual_seed(options.training.seed + static_cast<std::uint64_t>(mesh.rank("dp")));
    return network;
  }

  const std::shared_ptr<paceline::ProcessGroup> parts_;  // also kept alive by mesh and layers
  const std::shared_ptr<Model> network_;
  const std::unique_ptr<paceline::optim::Optimizer> optimizer_;
  paceline::DistributedDataParallel<Model> model_;
};

}  // namespace

std::unique_ptr<Learner> make_whole_learner(const Options& options, std::int64_t vocabulary,
                                            const paceline::DeviceMesh& mesh) {
  return std::make_unique<WholeLearner>(options, vocabulary, mesh);
}

}  // namespace train_gpt
