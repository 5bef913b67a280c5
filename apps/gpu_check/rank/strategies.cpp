// Checks of the parallel strategies: trains with each of them for a few steps on the GPU and on the
// CPU, and compares the results.

#include <algorithm>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/core/json_text.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/data_parallel.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"

#include "apps/gpu_check/rank/training_job.h"

namespace paceline::gpu_check {
namespace {

using Tensors = PipelineStage::Tensors;

// Compares the values that a strategy has computed on the device and on the CPU. `what` names the
// strategy in the error.
CheckOutcome compared(const std::vector<at::Tensor>& on_device,
                      const std::vector<at::Tensor>& on_cpu, const char* what) {
  const double difference = require_close(on_device, on_cpu, what);
  return passed(fmt::format("same as on the CPU, up to {:.1e}", difference),
                json_text(nlohmann::json{{"largest_difference", difference}}));
}

// Takes the steps of the job. Returns the loss of each step, then the parameters.
template <class Model>
std::vector<at::Tensor> train(const TrainingJob& job, Model& model) {
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  std::vector<at::Tensor> values;
  for (int step = 0; step < kJobSteps; ++step) {
    model.zero_grad();
    const at::Tensor loss = job.loss_of(model.forward(job.input(step)), step);
    loss.backward();
    optimizer.step();
    values.push_back(loss.detach());
  }
  for (const at::Tensor& one : model.parameters()) values.push_back(one.detach());
  return values;
}

std::vector<at::Tensor> train_with_ddp(const Ranks& ranks, c10::Device device) {
  TrainingJob job(ranks, device);
  DistributedDataParallelOptions options;
  options.buckets.first_bytes = options.buckets.cap_bytes = 4096;  // several buckets
  DistributedDataParallel<JobNetImpl> model(job.net.ptr(), ranks.group, options);
  return train(job, model);
}

std::vector<at::Tensor> train_with_data_parallel(const Ranks& ranks,
                                                 const std::vector<c10::Device>& devices) {
  TrainingJob job(ranks, devices.front());
  DataParallel<JobNetImpl> model(job.net, devices);
  return train(job, model);
}

std::vector<at::Tensor> train_fully_sharded(const Ranks& ranks, c10::Device device, int stage) {
  TrainingJob job(ranks, device);
  optim::AdamW optimizer(job.net->parameters(), {.lr = 0.01});
  // Small units: the model has several, which stage 3 gathers and releases in each pass.
  auto model = fully_shard(job.net, ranks.group, optimizer, {.stage = stage, .unit_bytes = 4096});
  std::vector<at::Tensor> values;
  for (int step = 0; step < kJobSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = job.loss_of(model->forward(job.input(step)), step);
    loss.backward();
    optim::clip_grad_norm(optimizer, 0.1);
    optimizer.step();
    values.push_back(loss.detach());
  }
  for (const at::Tensor& one : job.net->parameters()) values.push_back(one.detach().clone());
  return values;
}

CheckOutcome check_fully_shard(const Ranks& ranks, int stage) {
  return compared(train_fully_sharded(ranks, ranks.device, stage),
                  train_fully_sharded(ranks, c10::kCPU, stage), "fully_shard");
}

// Runs a forward and a backward pass through layers that are divided among the ranks. Returns the
// output and the gradients.
std::vector<at::Tensor> run_divided_layers(const Ranks& ranks, c10::Device device) {
  const std::int64_t width = 16 * ranks.world_size();
  torch::manual_seed(6);
  ColumnParallelLinear first(torch::nn::LinearOptions(32, width), ranks.group);
  RowParallelLinear second(torch::nn::LinearOptions(width, 4), ranks.group);
  first->to(device);
  second->to(device);
  torch::manual_seed(7);
  const at::Tensor input = torch::randn({5, 32}).to(device).requires_grad_();
  const at::Tensor output = second->forward(torch::relu(first->forward(input)));
  output.square().sum().backward();
  std::vector<at::Tensor> values{output.detach(), input.grad()};
  for (const at::Tensor& one : first->parameters()) values.push_back(one.grad());
  for (const at::Tensor& one : second->parameters()) values.push_back(one.grad());
  return values;
}

// Runs one step of a pipeline with a stage on each rank. Returns the losses, if this rank has the
// last stage, and the gradients.
std::vector<at::Tensor> run_pipeline(const Ranks& ranks, c10::Device device) {
  constexpr int kMicroBatches = 4;
  const auto schedule = pipeline_schedule("1f1b", ranks.world_size(), kMicroBatches, 1);
  torch::manual_seed(20 + static_cast<std::uint64_t>(ranks.rank()));
  torch::nn::Sequential layer(torch::nn::Linear(6, 6), torch::nn::Tanh());
  layer->to(device);
  std::vector<PipelineStage> stages;
  stages.push_back(make_stage(ranks.rank(), layer));
  Pipeline pipe(ranks.group, schedule, stages);
  torch::manual_seed(30);
  const at::Tensor batch = torch::randn({8, 6}).to(device);
  const at::Tensor target = torch::randn({2, 6}).to(device);
  const auto result = pipe.step(
      pipe.has_first_stage() ? split_micro_batches(batch, kMicroBatches) : std::vector<Tensors>{},
      [&](const Tensors& outputs, int) { return torch::mse_loss(outputs[0], target); });
  std::vector<at::Tensor> values(result.losses.begin(), result.losses.end());
  for (const at::Tensor& one : layer->parameters()) values.push_back(one.grad());
  return values;
}

}  // namespace

CheckOutcome check_data_parallel(const Ranks& ranks) {
  return compared(train_with_ddp(ranks, ranks.device), train_with_ddp(ranks, c10::kCPU),
                  "DistributedDataParallel");
}

CheckOutcome check_replicas(const Ranks& ranks) {
  const int count = num_cuda_devices();
  if (count < 2) return not_here("one GPU");
  if (ranks.rank() != 0) return passed();
  std::vector<c10::Device> gpus;
  for (int gpu = 0; gpu < count; ++gpu)
    gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  const std::vector<c10::Device> cpu(gpus.size(), c10::kCPU);
  return compared(train_with_data_parallel(ranks, gpus), train_with_data_parallel(ranks, cpu),
                  "DataParallel");
}

CheckOutcome check_fully_shard_1(const Ranks& ranks) { return check_fully_shard(ranks, 1); }
CheckOutcome check_fully_shard_2(const Ranks& ranks) { return check_fully_shard(ranks, 2); }
CheckOutcome check_fully_shard_3(const Ranks& ranks) { return check_fully_shard(ranks, 3); }

CheckOutcome check_tensor_parallel(const Ranks& ranks) {
  return compared(run_divided_layers(ranks, ranks.device), run_divided_layers(ranks, c10::kCPU),
                  "tensor parallelism");
}

CheckOutcome check_pipeline(const Ranks& ranks) {
  if (ranks.world_size() < 2) return not_here("one rank");
  return compared(run_pipeline(ranks, ranks.device), run_pipeline(ranks, c10::kCPU),
                  "the pipeline");
}

}  // namespace paceline::gpu_check
