// Trains a GPT on a text, alone or with any number of ranks, and prints a sample of what it
// learned:
//
//   train_gpt
//   paceline run --nproc-per-node 2 train_gpt --shard 3
//   paceline run --nproc-per-node 4 train_gpt --mesh dp=2,tp=2
//
// What is here is the program's own: text, model, how ranks divide the work, loss, evaluation. The
// loop, checkpoints, metrics and the closing table are train::TrainingRun's
// (paceline/train/training_run.h).

#include <filesystem>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/paceline.h"

#include "examples/train_gpt/model.h"
#include "examples/train_gpt/options.h"
#include "examples/train_gpt/profile.h"
#include "examples/train_gpt/text.h"

namespace train_gpt {
namespace {

namespace data = paceline::data;
namespace planning = paceline::planning;
namespace train = paceline::train;

// Along "dp" the ranks differ in their samples, along "tp" in their part of every layer.
paceline::DeviceMesh make_mesh(const Options& options,
                               const std::shared_ptr<paceline::ProcessGroup>& group) {
  if (!options.mesh.empty()) return {group, options.mesh};
  return {group, {{"dp", group->world_size()}, {"tp", 1}}};
}

std::string title(const Options& options, const Text& text, const paceline::DeviceMesh& mesh) {
  return fmt::format(
      "train_gpt: {} layers of width {} on {} ({} training tokens); mesh {}, shard {}",
      options.layers, options.width, std::filesystem::path(options.text).filename().string(),
      text.training->num_tokens(), paceline::to_string(mesh.axes()), options.shard);
}

int run(const Options& options) {
  const auto& flags = options.training;
  const train::TrainingProcess process(flags.process, flags.seed);
  const auto& group = process.group();
  const paceline::DeviceMesh mesh = make_mesh(options, group);
  const auto& replicas = mesh.group("dp");
  const Text text = load_text(options);
  const at::Tensor prompt = options.sample > 0 ? encode_prompt(options, text) : at::Tensor();
  process.print_opening(title(options, text, mesh));

  torch::manual_seed(flags.seed);  // the same initial weights whatever the mesh
  const auto network = std::make_shared<Model>(options, text.vocabulary, mesh.group("tp"));
  torch::manual_seed(flags.seed + static_cast<std::uint64_t>(replicas->rank()));  // of dropout
  const auto optimizer = train::make_optimizer(flags.optimizer, network->parameters());

  const paceline::DistributedDataParallelOptions averaging{.logical_shards =
                                                               flags.loading.logical_shards};
  auto model = options.shard == 0
                   ? paceline::DistributedDataParallel<Model>(network, replicas, averaging)
                   : paceline::fully_shard(network, replicas, *optimizer,
                                           {.stage = options.shard, .data_parallel = averaging});
  if (const auto hook = train::make_hook(flags.hook)) model.register_comm_hook(hook);

  const auto loss = [&](const data::Batch& batch) {
    return network->loss(model(batch.data), batch.target);
  };
  const auto test_loader = make_test_loader(options, text, *replicas);
  train::TrainingRun training(
      group,
      {.module = model.module(),
       .optimizer = *optimizer,
       .gradients = train::backward_passes(loss, model.reducer()),
       .data = fmt::format("{} ({} tokens)", options.text, text.training->num_tokens()),
       .make_loader =
           [&](std::uint64_t seed) { return make_training_loader(options, text, seed, *replicas); },
       .test =
           [&] { return train::test_result(train::evaluate_text(*replicas, *test_loader, loss)); },
       .weights = [&] { return network->weights(); },
       .replicas = replicas,
       .unit = {.name = "tokens", .per_sample = options.context},
       .describe =
           [&](planning::JobProfile& profile, std::int64_t samples) {
             describe_gpt(options, text.vocabulary, samples, profile);
           }},
      flags.run);
  const int code = training.train();
  if (code != 0 || options.sample == 0) return code;
  const at::Tensor sample = network->generate(prompt, options.sample, flags.seed);
  if (group->rank() == 0) fmt::print("\n{}\n", decode_sample(text, sample));
  return code;
}

}  // namespace
}  // namespace train_gpt

int main(int argc, char** argv) {
  return paceline::train::run_guarded(
      [&] { return train_gpt::run(train_gpt::parse_options(argc, argv)); });
}
