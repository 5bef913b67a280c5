#pragma once

// A small training run on made-up images, for the tests of this folder.

#include <memory>
#include <mutex>

#include <torch/torch.h>

#include "paceline/training/data/image_dataset.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/train/loop.h"

namespace paceline::train {

struct SmallNet : torch::nn::Module {
  SmallNet() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    head = register_module("head", torch::nn::Linear(4 * 8 * 8, 3));
  }
  at::Tensor forward(const at::Tensor& images) {
    return head(paceline::dropout(torch::relu(norm(conv(images))), 0.1, is_training()).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

inline data::ImageDataset small_dataset(std::int64_t size = 50) {
  data::ImageDataset dataset;
  const auto generator = at::detail::createCPUGenerator(5);
  dataset.images = at::randint(0, 256, {size, 1, 8, 8}, generator, at::kByte);
  dataset.labels = at::randint(0, 3, {size}, generator, at::kLong);
  dataset.classes = {"a", "b", "c"};
  return dataset;
}

// One rank's run. LibTorch's default generator is global, so without logical shards the ranks must
// be processes if the bits of dropout matter.
struct SmallRun {
  explicit SmallRun(std::shared_ptr<ProcessGroup> process_group, std::int64_t logical_shards = 0)
      : group(std::move(process_group)),
        loader(std::make_shared<data::ImageSamples>(
                   small_dataset(),
                   data::ImageSamplesOptions{.crop_padding = 1, .random_flip = true, .seed = 3}),
               data::DistributedSampler(50, group->world_size(), group->rank(), {.seed = 3}),
               {.batch_size = 5, .logical_shards = logical_shards}),
        model(make_model(*group), group, {.logical_shards = logical_shards}),
        optimizer(model->parameters(), {.lr = 1e-2}) {
    core_of(optimizer).shard(group);
  }

  static std::shared_ptr<SmallNet> make_model(ProcessGroup& group) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(static_cast<std::uint64_t>(10 + group.rank()));
    return std::make_shared<SmallNet>();
  }

  LoopEnd train(const LoopOptions& options, const LoopHooks& hooks = {}) {
    BackwardPasses gradients(
        [&](const data::Batch& batch) {
          if (seen) seen(batch);
          return torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
        },
        model.reducer());
    return run_loop(options, state, loader, gradients, optimizer, times, hooks);
  }

  // All parameters and buffers in one row, for comparing bits.
  at::Tensor flat() {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : model->parameters()) parts.push_back(parameter.detach().flatten());
    for (const auto& buffer : model->buffers()) parts.push_back(buffer.flatten().to(at::kFloat));
    return at::cat(parts);
  }

  std::shared_ptr<ProcessGroup> group;
  TrainingState state{.seed = 3};
  data::DataLoader loader;
  DistributedDataParallel<SmallNet> model;
  optim::Adam optimizer;
  PhaseTimes times;
  // Called with each batch on which a step trains.
  std::function<void(const data::Batch& batch)> seen;
};

}  // namespace paceline::train
