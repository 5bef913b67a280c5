// The names that a user of data parallelism needs, in one program: its own data, an own loop with
// checkpoints, evaluation, and weights to pass on. tests/package/count_names.py counts them.

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <paceline/paceline.h>

#include <torch/torch.h>

namespace data = paceline::data;
namespace optim = paceline::optim;
namespace train = paceline::train;

namespace {

using namespace std::chrono_literals;

data::Sample line_sample(std::int64_t index, std::int64_t /*epoch*/) {
  const at::Tensor x = torch::full({1}, static_cast<double>(index % 10) / 10);
  return {x, 2 * x + 1};
}

int program(const std::string& folder) {
  const std::shared_ptr<paceline::ProcessGroup> group =
      paceline::init_process_group({.group = {.timeout = 60s}});
  paceline::seed_rank(1 + static_cast<std::uint64_t>(group->rank()));
  paceline::AgreedStop stop(folder + "/stop");

  torch::nn::Sequential net(torch::nn::Linear(1, 8),
                            paceline::SyncBatchNorm(torch::nn::BatchNormOptions(8), group),
                            torch::nn::ReLU(), torch::nn::Linear(8, 1));
  optim::AdamW optimizer(net->parameters(), optim::AdamWOptions{.lr = 1e-2});
  optim::CosineAnnealingLR schedule(optimizer, {.T_max = 20});
  optim::GradScaler scaler;
  paceline::DistributedDataParallelOptions options{.broadcast_buffers = true};
  paceline::DistributedDataParallel model =
      paceline::fully_shard(net, group, optimizer, {.stage = 0, .data_parallel = options});
  model.register_comm_hook(std::make_shared<paceline::CompressHook>(torch::kBFloat16));

  const auto dataset = std::make_shared<data::SampleDataset>("lines", 64, line_sample);
  data::DistributedSampler sampler(dataset->size(), group, data::SamplerOptions{.seed = 1});
  data::DataLoader loader(dataset, sampler, data::DataLoaderOptions{.global_batch_size = 16});

  double best = 1e9;
  train::Checkpointer checkpointer(group, {.folder = folder + "/run", .resume = true});
  checkpointer.attach("model", model);
  checkpointer.attach("optimizer", optimizer);
  checkpointer.attach("schedule", schedule);
  checkpointer.attach("data", loader);
  checkpointer.attach("best", best);
  std::int64_t step = checkpointer.begin();
  for (std::int64_t epoch = loader.position().epoch; epoch < 2; ++epoch) {
    double sum = 0;
    for (const data::Batch& batch : loader.epoch(epoch)) {
      model.set_requires_gradient_sync(batch.ends_step);
      at::Tensor loss;
      {
        const paceline::Autocast autocast(torch::kBFloat16);
        loss = torch::mse_loss(model(batch.data), batch.target);
      }
      scaler.scale(batch.weighted(loss)).backward();
      if (!batch.ends_step) continue;
      scaler.unscale(optimizer);
      optim::clip_grad_norm(optimizer, 1.0);
      scaler.step(optimizer);
      scaler.update();
      schedule.step();
      optimizer.zero_grad();
      sum += loss.item<double>();
      ++step;
    }
    const double mean = paceline::all_reduce_value(group, sum, paceline::ReduceOp::kSum);
    if (mean < best) {
      best = mean;
      if (group->rank() == 0)
        paceline::write_weights(folder + "/best.safetensors", paceline::weights_of(*net));
    }
    checkpointer.save(step);
    if (stop.requested(group)) return paceline::kStoppedAsAgreed;
  }
  checkpointer.finish();
  group->barrier({.timeout = 10s});

  const at::Tensor total = torch::ones({1});
  paceline::all_reduce(group, total);
  const auto told = paceline::broadcast_object(group, "told", 0);
  const auto restored = train::read_checkpoint(folder + "/run");
  paceline::load_weights(*net, paceline::read_weights(folder + "/best.safetensors"));
  std::printf("%lld steps, %zu weights, %s\n", static_cast<long long>(step),
              restored.weights.size(), told.c_str());
  return 0;
}

}  // namespace

int main() {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("names-" + std::to_string(getpid()))).string();
  std::filesystem::create_directories(folder);
  return train::run_guarded([&] {
    try {
      const int code = program(folder);
      std::filesystem::remove_all(folder);
      return code;
    } catch (const paceline::Error& error) {
      if (error.code() != paceline::ErrorCode::kUnsupported) throw;
      return 1;
    }
  });
}
