// Checks of checkpoints with CUDA tensors, and of the data loader.

#include <algorithm>
#include <chrono>
#include <numeric>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/core/json_text.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/train/checkpoints/checkpointer.h"

#include "apps/gpu_check/rank/training_job.h"

namespace paceline::gpu_check {
namespace {

using Clock = std::chrono::steady_clock;

void train_once(TrainingJob& job, optim::Optimizer& optimizer, int step) {
  optimizer.zero_grad();
  job.loss_of(job.net->forward(job.input(step)), step).backward();
  optimizer.step();
}

std::vector<at::Tensor> values_of(const TrainingJob& job) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& one : job.net->parameters()) values.push_back(one.detach().cpu());
  return values;
}

// Saves a checkpoint after the first of two steps. Returns the values after the second.
std::vector<at::Tensor> values_of_saved_run(const Ranks& ranks, const std::string& folder) {
  TrainingJob job(ranks, ranks.device, 0);  // no communication: all ranks use the same batches
  optim::AdamW optimizer(job.net->parameters(), {.lr = 0.01});
  train::Checkpointer saver(ranks.group, {.folder = folder});
  saver.attach("model", job.net);
  saver.attach("optimizer", optimizer);
  saver.begin();
  train_once(job, optimizer, 1);
  if (!saver.save(1)) throw CheckFailed("the checkpoint was not begun");
  train_once(job, optimizer, 2);  // while the checkpoint is being written
  if (!saver.finish()) throw CheckFailed("the checkpoint was not written");
  return values_of(job);
}

// Samples that take a while to make.
class SlowNumbers : public data::Dataset {
 public:
  static constexpr std::int64_t kSize = 256;
  explicit SlowNumbers(std::int64_t width) : width_(width) {}
  std::int64_t size() const override { return kSize; }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t /*epoch*/) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    const at::Tensor values = torch::empty({count, width_});
    for (std::int64_t i = 0; i < count; ++i)
      values[i].fill_(static_cast<float>(indices[static_cast<std::size_t>(i)]));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {values, values.select(1, 0).clone()};
  }
  std::string name() const override { return "numbers"; }

 private:
  const std::int64_t width_;
};

// Returns the seconds of one epoch in which each batch takes part in `products` matrix products.
// Throws CheckFailed if the values of the batches differ from those of the data set.
double epoch_seconds(const Ranks& ranks, std::int64_t width, int products) {
  data::DataLoader loader(std::make_shared<SlowNumbers>(width),
                          data::evaluation_indices(SlowNumbers::kSize, 1, 0),
                          {.batch_size = 16, .num_threads = 1, .device = ranks.device});
  const at::Tensor weights = torch::ones({width, width}, ranks.device);
  at::Tensor sum = torch::zeros({}, ranks.device);
  const auto begin = Clock::now();
  for (const data::Batch& batch : loader.epoch(0)) {
    sum += batch.target.sum();
    at::Tensor product = batch.data;
    for (int i = 0; i < products; ++i) product = product.matmul(weights) / width;
  }
  const double found = sum.item<double>();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  constexpr double kSum = SlowNumbers::kSize * (SlowNumbers::kSize - 1) / 2.0;
  if (found != kSum)
    throw CheckFailed(
        fmt::format("the batches of an epoch sum up to {} instead of {}", found, kSum));
  return seconds;
}

}  // namespace

CheckOutcome check_checkpoint(const Ranks& ranks) {
  const std::string folder = ranks.folder + "/checkpoint";
  const auto expected = values_of_saved_run(ranks, folder);
  for (const c10::Device device : {ranks.device, c10::Device(c10::kCPU)}) {
    TrainingJob restored(ranks, device, 0);
    optim::AdamW again(restored.net->parameters(), {.lr = 0.01});
    train::Checkpointer loader(ranks.group, {.folder = folder, .resume = true});
    loader.attach("model", restored.net);
    loader.attach("optimizer", again);
    if (loader.begin() != 1) throw CheckFailed("the run does not continue after step 1");
    train_once(restored, again, 2);
    require_close(values_of(restored), expected, "the run continued on " + device.str());
  }
  return passed();
}

CheckOutcome check_loader(const Ranks& ranks) {
  const std::int64_t width = ranks.is_quick ? 64 : 2048;
  epoch_seconds(ranks, width, 1);  // the first use of the GPU takes longer
  const double load = epoch_seconds(ranks, width, 0);
  const int products = ranks.is_quick ? 2 : 40;
  const double both = epoch_seconds(ranks, width, products);
  return passed(
      fmt::format("an epoch takes {:.2f} s alone, {:.2f} s while the GPU computes", load, both),
      json_text(nlohmann::json{{"load_seconds", load}, {"load_and_compute_seconds", both}}));
}

}  // namespace paceline::gpu_check
