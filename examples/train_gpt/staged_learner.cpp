#include <fstream>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/ranges.h>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/pipeline_division.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor_parallel/full_state_dict.h"
#include "paceline/training/train/model_parts.h"
#include "paceline/training/train/pipeline_gradients.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_gpt/learner.h"

namespace train_gpt {
namespace {

namespace models = paceline::models;
namespace train = paceline::train;
using paceline::PipelineStage;
using Tensors = PipelineStage::Tensors;

constexpr double kMiB = 1 << 20;

class StagedLearner : public Learner {
 public:
  StagedLearner(const Options& options, std::int64_t vocabulary, const paceline::DeviceMesh& mesh)
      : options_(options),
        gpt_(gpt_options(options, vocabulary)),
        precision_(train::precision_of(options.training.precision)),
        mesh_(mesh),
        parts_(mesh.group("tp")),
        stages_group_(mesh.group("pp")),
        division_(divide()),
        stages_(make_stages()),
        module_(models::one_module(stages_)),
        pipeline_(stages_group_, division_.schedule(), pipeline_stages()),
        tied_(*stages_group_, tied_weights()),
        optimizer_(train::make_optimizer(options.training.optimizer, module_->parameters())) {
    const bool counts_tied = stages_group_->rank() == 0;
    optimizer_->set_model_parts(train::model_parts(*module_, mesh.sub_mesh(model_axes()).world(),
                                                   parts_,
                                                   counts_tied ? Tensors{} : tied_weights()));
    const train::PipelineGradientsOptions averaging{
        .replicas = mesh.group("dp"),
        .tied = &tied_,
        .shard = {.stage = options.shard, .shard_across_hosts = options.shard_across_hosts}};
    gradients_ = std::make_shared<train::PipelineGradients>(
        pipeline_,
        [this](const Tensors& outputs, const paceline::data::Batch& part) {
          return loss_of(parts_, outputs[0], part.target);
        },
        *optimizer_, averaging);
  }

  torch::nn::Module& module() override { return *module_; }
  paceline::optim::Optimizer& optimizer() override { return *optimizer_; }
  std::shared_ptr<train::StepGradients> gradients() override { return gradients_; }
  at::Tensor test_loss(const paceline::data::Batch& batch) override {
    return gradients_->evaluate(batch);
  }
  paceline::StateDict weights() override {
    return paceline::gather_stages(*stages_group_, paceline::full_state_dict(*module_, *parts_));
  }
  at::Tensor generate(const at::Tensor& prompt, std::int64_t tokens, std::uint64_t seed) override {
    const paceline::StateDict all = weights();
    if (mesh_.world()->rank() != 0) return {};
    models::Gpt whole(gpt_);
    paceline::load_full_state_dict(*whole, all);
    return sample_from(whole, prompt, tokens, seed);
  }

  std::string division() const override {
    const std::string best_named = division_.best_named_schedule();
    const auto& schedule = division_.schedule();
    const auto each = static_cast<std::size_t>(schedule.num_stages() / schedule.num_ranks());
    return fmt::format(
               "  pipeline: stages of {} layers; {}, {} micro-batches: {:.1f} ms planned, "
               "bubble {:.1f}%, activations of {:.3f} MiB on a rank at most\n",
               fmt::join(division_.layers(), "+"), schedule.name, schedule.num_micro_batches,
               1e3 * division_.seconds(), 100 * division_.bubble_share(),
               division_.peak_bytes() / kMiB) +
           (best_named.empty() ? ""
                               : fmt::format("  searched: {} a rank; the best named schedule: {}\n",
                                             paceline::counted(each, "stage"), best_named));
  }

  void finish() override {
    const std::string& file = options_.pipeline.picture;
    if (file.empty() || gradients_->last_step().actions.empty()) return;
    const auto& step = gradients_->last_step();
    const auto& schedule = division_.schedule();
    const std::string title =
        fmt::format("train_gpt, last step: {}, {} micro-batches, layers {}", schedule.name,
                    schedule.num_micro_batches, fmt::join(division_.layers(), "+"));
    const std::string text = file.ends_with(".svg") ? division_.picture(*stages_group_, step, title)
                                                    : division_.trace(*stages_group_, step, title);
    if (mesh_.world()->rank() != 0) return;
    std::ofstream out(file);
    out << text;
    if (!out.flush()) throw paceline::system_error("--pipeline-picture " + file);
    fmt::print("the last step's picture is in {}\n", file);
  }

 private:
  // The stages of this rank.
  std::vector<int> own_stages() const {
    std::vector<int> own;
    for (int stage = 0; stage < division_.schedule().num_stages(); ++stage) {
      const int rank = division_.schedule().rank_of_stage[static_cast<std::size_t>(stage)];
      if (rank == stages_group_->rank()) own.push_back(stage);
    }
    return own;
  }

  models::BlockRange range_of(int stage) const {
    const auto& layers = division_.layers();
    const auto begin = std::accumulate(layers.begin(), layers.begin() + stage, 0);
    return {begin, begin + layers[static_cast<std::size_t>(stage)]};
  }

  // The axes along which ranks hold parts of one model, in the order of the mesh.
  std::vector<std::string> model_axes() const {
    std::vector<std::string> axes;
    for (const auto& axis : mesh_.axes()) {
      if (axis.name != "dp") axes.push_back(axis.name);
    }
    return axes;
  }

  PipelineStage stage_of(int index, models::GptStage stage) const {
    return {.index = index,
            .forward =
                [this, stage](const Tensors& inputs) mutable {
                  std::optional<paceline::Autocast> casting;
                  if (precision_.autocast) casting.emplace(*precision_.autocast);
                  const at::Tensor output = stage->forward(inputs.at(0));
                  return Tensors{stage->is_last() ? output.to(at::kFloat) : output};
                },
            .parameters = stage->parameters()};
  }

  // The initial weights are the same for every mesh.
  models::GptStage make_stage(models::BlockRange range) const {
    torch::manual_seed(options_.training.seed);
    models::GptStage stage(gpt_, layers_for(parts_), range);
    for (auto& parameter : stage->parameters())
      parameter.set_data(parameter.to(precision_.parameters));
    return stage;
  }

  // The number of sequences in the largest micro-batch.
  std::int64_t most_sequences() const {
    const auto& loading = options_.training.loading;
    const std::int64_t share = loading.global_batch_size > 0
                                   ? loading.global_batch_size / mesh_.size("dp")
                                   : loading.batch_size;
    return (share + options_.micro_batches() - 1) / options_.micro_batches();
  }

  // One block of each kind, on the CPU, where the division is planned: the first block with the
  // embedding, an inner block if there is any, and the last block with the logits.
  std::vector<PipelineStage> different_blocks() const {
    const std::int64_t last = gpt_.layers - 1;
    std::vector<PipelineStage> blocks{stage_of(0, make_stage({0, 1}))};
    if (last > 1) blocks.push_back(stage_of(1, make_stage({1, 2})));
    blocks.push_back(stage_of(2, make_stage({last, last + 1})));
    return blocks;
  }
  paceline::PipelineDivision divide() const {
    const at::Tensor tokens = at::arange(most_sequences() * gpt_.context)
                                  .remainder(gpt_.vocabulary)
                                  .view({-1, gpt_.context});
    const auto loss = [&](const Tensors& outputs, int) {
      return loss_of(parts_, outputs[0], tokens);
    };
    const auto& flags = options_.pipeline;
    return {*mesh_.world(),
            different_blocks(),
            {tokens},
            loss,
            {.num_ranks = stages_group_->world_size(),
             .num_micro_batches = options_.micro_batches(),
             .num_layers = static_cast<int>(gpt_.layers),
             .schedule = flags.schedule,
             .stages_per_rank = flags.stages_per_rank,
             .max_bytes_per_rank = flags.memory_mib > 0 ? flags.memory_mib * kMiB : 0}};
  }

  std::vector<models::GptStage> make_stages() const {
    std::vector<models::GptStage> stages;
    for (const int index : own_stages()) {
      stages.push_back(make_stage(range_of(index)));
      stages.back()->to(options_.training.loading.device);
    }
    models::join_ends(stages);
    // For dropout: different samples and different stages get different random numbers.
    torch::manual_seed(
        options_.training.seed +
        static_cast<std::uint64_t>(mesh_.rank("dp") + mesh_.size("dp") * stages_group_->rank()));
    return stages;
  }

  std::vector<PipelineStage> pipeline_stages() const {
    std::vector<PipelineStage> all;
    for (const int index : own_stages()) all.push_back(stage_of(index, stages_[all.size()]));
    return all;
  }

  std::vector<at::Tensor> tied_weights() const {
    std::vector<at::Tensor> tied;
    for (const models::GptStage& stage : stages_) {
      for (const at::Tensor& weight : stage->tied_weights()) tied.push_back(weight);
    }
    return tied;
  }

  const Options options_;
  const models::GptOptions gpt_;
  const train::Precision precision_;
  const paceline::DeviceMesh mesh_;
  const std::shared_ptr<paceline::ProcessGroup> parts_;         // also kept alive by mesh_
  const std::shared_ptr<paceline::ProcessGroup> stages_group_;  // also kept alive by mesh_
  const paceline::PipelineDivision division_;
  const std::vector<models::GptStage> stages_;
  const std::shared_ptr<torch::nn::Module> module_;
  paceline::Pipeline pipeline_;
  paceline::TiedWeights tied_;
  const std::unique_ptr<paceline::optim::Optimizer> optimizer_;
  std::shared_ptr<train::PipelineGradients> gradients_;
};

}  // namespace

std::unique_ptr<Learner> make_staged_learner(const Options& options, std::int64_t vocabulary,
                                             const paceline::DeviceMesh& mesh) {
  return std::make_unique<StagedLearner>(options, vocabulary, mesh);
}

}  // namespace train_gpt
