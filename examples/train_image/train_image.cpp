// Trains a network on images, alone or with any number of ranks:
//
//   train_image
//   paceline run --nproc-per-node 2 train_image
//   paceline run --nproc-per-node 4 train_image --dataset folder --data-dir DIR --model resnet50
//
// This file contains what only this program does: images, model, loss, evaluation.
// train::TrainingRun (paceline/training/train/training_run.h) provides the loop, checkpoints,
// metrics and the closing table.

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/paceline.h"
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_image/images.h"
#include "examples/train_image/model.h"
#include "examples/train_image/options.h"

namespace train_image {
namespace {

namespace data = paceline::data;
namespace train = paceline::train;

std::string title(const Options& options, const Images& images) {
  const bool trains = !options.evaluate;
  return fmt::format("train_image: {} on {} ({} {} images of {}x{}x{})", options.model, images.name,
                     trains ? images.num_training : images.testing->size(),
                     trains ? "training" : "test", images.channels, images.height, images.width);
}

// Prints the result of --evaluate, which does not train.
int print_result(const Options& options, const Images& images, paceline::ProcessGroup& group,
                 const train::TestResult& result) {
  std::vector<paceline::MetricsLog::Field> fields(result.values.begin(), result.values.end());
  fields.emplace_back("test_loss", result.loss);
  std::string table = train::table_of(result);
  if (images.num_skipped) {
    const std::int64_t skipped = paceline::all_reduce_value(group, images.num_skipped());
    fields.emplace_back("skipped_files", skipped);
    table += train::table_row("skipped files", fmt::format("{}", skipped));
  }
  if (group.rank() != 0) return 0;
  fmt::print("{}", table);
  if (options.training.run.metrics.empty()) return 0;
  paceline::MetricsLog(options.training.run.metrics).write("evaluation", fields);
  return 0;
}

int run(Options options) {
  auto& flags = options.training;
  const train::TrainingProcess process(flags.process, flags.seed);
  flags.loading.device = process.device();
  const auto& group = process.group();
  const Images images = load_images(options);
  process.print_opening(title(options, images));

  const auto network = std::make_shared<Model>(options, images, group);
  torch::nn::Module& weights = *network->network.ptr();
  if (options.evaluate) {  // the other ranks get rank 0's weights below
    paceline::on_rank(0, *group, [&] {
      paceline::load_weights(weights, paceline::read_weights(flags.run.weights));
    });
  }
  network->to(process.device());
  const paceline::DistributedDataParallelOptions averaging{.logical_shards =
                                                               flags.loading.logical_shards};
  paceline::DistributedDataParallel<Model> model(network, group, averaging);

  const auto test_loader = make_test_loader(options, images, *group);
  const auto test = [&] {
    const auto forward = [&](const at::Tensor& inputs) { return model(inputs); };
    return train::evaluate(group, *test_loader, forward).test_result();
  };
  if (options.evaluate) {
    model->eval();
    return print_result(options, images, *group, test());
  }

  const auto optimizer = train::make_optimizer(flags.optimizer, model->parameters());
  if (const auto hook = train::make_hook(flags.hook)) {
    // The optimizer is not sharded: a sharded one would send whole parameters, uncompressed.
    model.register_comm_hook(hook);
  } else {
    model =
        paceline::fully_shard(network, group, *optimizer, {.stage = 1, .data_parallel = averaging});
  }
  const auto loss = [&](const data::Batch& batch) {
    const at::Tensor logits = model(batch.data);
    // On a device the check would wait in every step, and the kernel refuses invalid labels itself.
    if (batch.target.is_cpu()) train::require_labels(batch, logits.size(1), images.name);
    return torch::nn::functional::cross_entropy(logits, batch.target);
  };
  train::TrainingRun training(
      group,
      {.module = model.module(),
       .optimizer = *optimizer,
       .gradients = train::backward_passes(loss, model),
       .data = fmt::format("{} ({} images)", images.name, images.num_training),
       .make_loader =
           [&](std::uint64_t seed) { return make_training_loader(options, images, seed, *group); },
       .test = test,
       .weights = [&] { return paceline::weights_of(weights); },
       .num_skipped = images.num_skipped},
      flags.run);
  return training.train();
}

}  // namespace
}  // namespace train_image

int main(int argc, char** argv) {
  return paceline::train::run_guarded(
      [&] { return train_image::run(train_image::parse_options(argc, argv)); });
}
