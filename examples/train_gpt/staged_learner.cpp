#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/ranges.h>

#include <torch/torch.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/picture.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/measure_layers.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor_parallel/full_state_dict.h"
#include "paceline/training/train/model_parts.h"
#include "paceline/training/train/named_choices.h"
#include "paceline/training/train/pipeline_gradients.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_gpt/learner.h"

namespace train_gpt {
namespace {

namespace models = paceline::models;
namespace pipeline = paceline::pipeline;
namespace train = paceline::train;
using paceline::PipelineStage;
using Tensors = PipelineStage::Tensors;

constexpr double kMiB = 1 << 20;

// The blocks of each stage of the pipeline, and its schedule. The same on every rank.
struct Division {
  std::vector<int> blocks;  // of each stage
  pipeline::Costs costs;    // of each stage, measured
  paceline::PipelineSchedule schedule;
  // The best of the named schedules, if the schedule was searched for and that one fits into
  // memory.
  std::optional<pipeline::SearchCandidate> best_named = {};

  models::BlockRange range_of(int stage) const {
    const auto begin = std::accumulate(blocks.begin(), blocks.begin() + stage, 0);
    return {begin, begin + blocks[static_cast<std::size_t>(stage)]};
  }
};

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
        pipeline_(stages_group_, division_.schedule, pipeline_stages()),
        tied_(*stages_group_, tied_weights()),
        optimizer_(train::make_optimizer(options.training.optimizer, module_->parameters())) {
    const bool counts_tied = stages_group_->rank() == 0;
    optimizer_->set_model_parts(train::model_parts(
        *module_, {.model = mesh.sub_mesh(model_axes()).world(), .layers = parts_},
        counts_tied ? Tensors{} : tied_weights()));
    train::PipelineGradientsOptions averaging{.replicas = mesh.group("dp"), .tied = &tied_};
    if (options.shard > 0)
      averaging.shard = paceline::detail::sharded_options(
                            *optimizer_, {.stage = options.shard,
                                          .shard_across_hosts = options.shard_across_hosts})
                            .shard;
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
    const pipeline::TimedSchedule timed = pipeline::simulate(division_.schedule, division_.costs);
    return fmt::format(
               "  pipeline: stages of {} layers; {}, {} micro-batches: {:.1f} ms planned, "
               "bubble {:.1f}%, activations of {:.3f} MiB on a rank at most\n",
               fmt::join(division_.blocks, "+"), division_.schedule.name,
               division_.schedule.num_micro_batches, 1e3 * timed.seconds,
               100 * timed.bubble_share(),
               *std::max_element(timed.peak_bytes.begin(), timed.peak_bytes.end()) / kMiB) +
           beside_best_named();
  }

  void finish() override {
    const std::string& file = options_.pipeline.picture;
    if (file.empty() || gradients_->last_step().actions.empty()) return;
    const auto& step = gradients_->last_step();
    const pipeline::Picture picture{
        .title = fmt::format("train_gpt, last step: {}, {} micro-batches, layers {}",
                             division_.schedule.name, division_.schedule.num_micro_batches,
                             fmt::join(division_.blocks, "+")),
        .planned = pipeline::simulate(division_.schedule, division_.costs),
        .measured = paceline::measured(*stages_group_, step)};
    if (mesh_.world()->rank() != 0) return;
    std::ofstream out(file);
    out << (file.ends_with(".svg") ? pipeline::to_svg(picture) : pipeline::to_trace(picture));
    if (!out.flush()) throw paceline::system_error("--pipeline-picture " + file);
    fmt::print("the last step's picture is in {}\n", file);
  }

 private:
  // The stages of this rank.
  std::vector<int> own_stages() const {
    std::vector<int> own;
    for (int stage = 0; stage < division_.schedule.num_stages(); ++stage) {
      const int rank = division_.schedule.rank_of_stage[static_cast<std::size_t>(stage)];
      if (rank == stages_group_->rank()) own.push_back(stage);
    }
    return own;
  }

  std::string beside_best_named() const {
    if (!division_.best_named) return "";
    const int each = division_.schedule.num_stages() / division_.schedule.num_ranks();
    return fmt::format("  searched: {} a rank; of those with names {} would take {:.1f} ms\n",
                       paceline::counted(static_cast<std::size_t>(each), "stage"),
                       division_.best_named->name, 1e3 * division_.best_named->seconds);
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

  // The blocks that differ: the first one with the embedding, one in the middle if there is any,
  // and the last one with the logits.
  std::vector<PipelineStage> different_blocks() const {
    const std::int64_t last = gpt_.layers - 1;
    std::vector<PipelineStage> blocks{stage_of(0, make_stage({0, 1}))};
    if (last > 1) blocks.push_back(stage_of(1, make_stage({1, 2})));
    blocks.push_back(stage_of(2, make_stage({last, last + 1})));
    return blocks;
  }
  Division divide() const {
    const std::vector<PipelineStage> different = different_blocks();
    const at::Tensor tokens = at::arange(most_sequences() * gpt_.context)
                                  .remainder(gpt_.vocabulary)
                                  .view({-1, gpt_.context});
    const auto loss = [&](const Tensors& outputs, int) {
      return loss_of(parts_, outputs[0], tokens);
    };
    auto& world = *mesh_.world();
    const auto count = static_cast<std::size_t>(gpt_.layers);
    const auto blocks =
        paceline::of_all_layers(paceline::measure_layers(world, different, {tokens}, loss), count);
    const auto memory = paceline::of_all_layers(
        paceline::measure_layer_memory(world, different, {tokens}, loss), count);
    std::vector<pipeline::Division> divisions;
    for (const std::vector<int>& layout : layouts()) {
      const auto layers = pipeline::split_by_cost(paceline::seconds_of(blocks), layout);
      divisions.push_back({layout, layers, paceline::costs_of_stages(blocks, layers, memory)});
    }
    const auto& flags = options_.pipeline;
    const int ranks = stages_group_->world_size(), micro_batches = options_.micro_batches();
    if (flags.schedule != "search") {
      const int each = std::max(1, flags.stages_per_rank);
      return {
          .blocks = divisions[0].layers,
          .costs = divisions[0].costs,
          .schedule = paceline::pipeline_schedule(flags.schedule, {ranks, micro_batches, each})};
    }
    pipeline::SearchOptions options;
    if (flags.memory_mib > 0)
      options.limits.bytes_of_rank.assign(static_cast<std::size_t>(ranks), flags.memory_mib * kMiB);
    const auto search = pipeline::search_divisions(divisions, micro_batches, options);
    Division division{.blocks = divisions[search.division].layers,
                      .costs = divisions[search.division].costs,
                      .schedule = search.found.schedule};
    if (search.best_named.fits) division.best_named = search.best_named;
    return division;
  }

  // The layouts among which the search chooses, or the one that the flags ask for.
  std::vector<std::vector<int>> layouts() const {
    const auto& flags = options_.pipeline;
    const int ranks = stages_group_->world_size();
    if (flags.schedule != "search" || flags.stages_per_rank > 0)
      return {pipeline::looped_layout(ranks, std::max(1, flags.stages_per_rank))};
    return pipeline::possible_layouts(ranks, static_cast<int>(gpt_.layers));
  }

  std::vector<models::GptStage> make_stages() const {
    std::vector<models::GptStage> stages;
    for (const int index : own_stages()) stages.push_back(make_stage(division_.range_of(index)));
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
  const Division division_;
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
