// Trains a GPT on a text, alone or with any number of ranks, and prints a text that it generates at
// the end:
//
//   train_gpt
//   paceline run --nproc-per-node 2 train_gpt --shard 3
//   paceline run --nproc-per-node 4 train_gpt --mesh dp=2,tp=2
//   paceline run --nproc-per-node 2 train_gpt --mesh pp=2 --schedule zero-bubble
//
// This file contains what only this program does: text, evaluation, sample. learner.h has the model
// and how ranks divide it. train::TrainingRun (paceline/training/train/training_run.h) provides the
// loop, checkpoints, metrics and the closing table.

#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/paceline.h"
#include "paceline/training/train/run_report.h"

#include "examples/train_gpt/learner.h"
#include "examples/train_gpt/options.h"
#include "examples/train_gpt/profile.h"
#include "examples/train_gpt/text.h"

namespace train_gpt {
namespace {

namespace data = paceline::data;
namespace planning = paceline::planning;
namespace train = paceline::train;

// Ranks along "dp" have different samples, ranks along "tp" have different parts of every layer,
// and ranks along "pp" have different layers. Ranks along "learner" belong to different learners.
paceline::DeviceMesh make_mesh(const Options& options,
                               const std::shared_ptr<paceline::ProcessGroup>& group) {
  const int learners = options.outer.learners;
  paceline::check(group->world_size() % learners == 0, "--outer {}: does not divide {} ranks",
                  learners, group->world_size());
  std::vector<paceline::MeshAxis> axes = options.mesh;
  if (axes.empty()) axes = {{"pp", 1}, {"dp", group->world_size() / learners}, {"tp", 1}};
  if (learners > 1) axes.insert(axes.begin(), {"learner", learners});
  return {group, axes};
}

std::string title(const Options& options, const Text& text, const paceline::DeviceMesh& mesh) {
  return fmt::format(
      "train_gpt: {} layers of width {} on {} ({} training tokens); mesh {}, shard {}",
      options.layers, options.width, std::filesystem::path(options.text).filename().string(),
      text.training->num_tokens(), paceline::to_string(mesh.axes()), options.shard);
}

// Collective. Rank 0 gets the weights under GPT-2's names and only with the tokenizer's tokens. On
// the other ranks the result keeps memory alive from which rank 0 copies, so these ranks must keep
// the result until rank 0 has written the file.
paceline::StateDict weights_for_file(const Options& options, const Text& text,
                                     const paceline::ProcessGroup& group, Learner& learner) {
  paceline::StateDict weights = learner.weights();
  if (group.rank() != 0) return weights;
  return paceline::models::to_hugging_face(gpt_options(options, text.vocabulary), weights,
                                           text.tokenizer->vocabulary_size());
}

int run(Options options) {
  auto& flags = options.training;
  const train::TrainingProcess process(flags.process, flags.seed);
  flags.loading.device = process.device();
  const auto& group = process.group();
  const paceline::DeviceMesh mesh = make_mesh(options, group);
  const auto replicas =
      mesh.has("learner") ? mesh.sub_mesh({"learner", "dp"}).world() : mesh.group("dp");
  const Text text = load_text(options);
  const at::Tensor prompt = options.sample > 0 ? encode_prompt(options, text) : at::Tensor();
  process.print_opening(title(options, text, mesh));

  const auto learner = make_learner(options, text.vocabulary, mesh);
  if (group->rank() == 0) fmt::print("{}", learner->division());
  std::optional<paceline::LowCommunication> outer;
  if (mesh.has("learner")) {
    paceline::LowCommunicationOptions step = options.outer.step;
    step.optimizer = &learner->optimizer();
    outer.emplace(mesh.group("learner"), mesh.group("dp"), learner->module().parameters(), step);
  }
  const auto test_loader = make_test_loader(options, text, *replicas);
  train::TrainingRun training(
      group,
      {.module = learner->module(),
       .optimizer = learner->optimizer(),
       .gradients = learner->gradients(),
       .data = fmt::format("{} ({} tokens)", options.text, text.training->num_tokens()),
       .make_loader =
           [&](std::uint64_t seed) { return make_training_loader(options, text, seed, *replicas); },
       .test =
           [&] {
             const auto loss = [&](const data::Batch& batch) { return learner->test_loss(batch); };
             return train::evaluate_text(*replicas, *test_loader,
                                         train::CountedLoss::over_all_targets(loss))
                 .test_result();
           },
       .after_step = outer ? std::function<void()>([&] { outer->step(); }) : nullptr,
       .weights = [&] { return weights_for_file(options, text, *group, *learner); },
       .replicas = replicas,
       .unit = {.name = "tokens",
                .per_sample = options.context,
                .operations_per_sample =
                    static_cast<double>(options.context) *
                    paceline::models::operations_per_token(gpt_options(options, text.vocabulary))},
       .describe =
           [&](planning::JobProfile& profile, std::int64_t samples) {
             describe_gpt(*group, options, text.vocabulary, samples, profile);
           }},
      flags.run);
  const int code = training.train();
  if (code != 0) return code;
  if (outer && group->rank() == 0) {
    fmt::print("outer steps: {}, {:.2f} MB sent by this rank, which waited {:.2f} s for them\n",
               outer->num_rounds(), outer->bytes_sent() / 1e6, outer->seconds_waited());
  }
  learner->finish();
  if (options.sample == 0) return code;
  const auto whole = learner->optimizer().whole_parameters();
  const at::Tensor sample = learner->generate(prompt, options.sample, flags.seed);
  if (group->rank() == 0) fmt::print("\n{}\n", decode_sample(text, sample));
  return code;
}

}  // namespace
}  // namespace train_gpt

int main(int argc, char** argv) {
  return paceline::train::run_guarded(
      [&] { return train_gpt::run(train_gpt::parse_options(argc, argv)); });
}
