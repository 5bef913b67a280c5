// The training loop of a typical DeepSpeed program: stage 2 of ZeRO, steps of 128 samples in parts
// of 16, clipped gradients and checkpoints. Started again, it continues:
//
//   paceline run --nproc-per-node 2 from_deepspeed FOLDER

#include <cstdint>
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "zero";
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);
  const auto inputs = torch::rand({1000, 8});
  const auto samples = std::make_shared<data::TensorDataset>(
      "squares", std::vector<at::Tensor>{inputs, inputs.square().sum(1, /*keepdim=*/true)});
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));

  const data::DistributedSampler sampler(samples->size(), group);
  data::DataLoader loader(samples, sampler, {.global_batch_size = 128, .micro_batch_size = 16});
  paceline::optim::Adam optimizer(net->parameters(), {.lr = 1e-2});
  auto engine = paceline::fully_shard(net, group, optimizer, {.stage = 2});

  paceline::train::Checkpointer checkpointer(group, {.folder = folder, .resume = true});
  checkpointer.attach("model", engine);
  checkpointer.attach("optimizer", optimizer);
  checkpointer.attach("data", loader);
  double last_loss = 0;
  checkpointer.attach("last loss", last_loss);
  std::int64_t step = checkpointer.begin();

  for (std::int64_t epoch = loader.position().epoch; epoch < 5; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      engine.set_requires_gradient_sync(batch.ends_step);
      const auto loss = torch::mse_loss(engine(batch.data), batch.target);
      batch.weighted(loss).backward();
      if (!batch.ends_step) continue;
      paceline::optim::clip_grad_norm(optimizer, 1.0);
      optimizer.step();
      optimizer.zero_grad();
      last_loss = loss.item<double>();
      if (++step % 15 == 0) checkpointer.save(step);
    }
  }
  checkpointer.save(step);
  if (!checkpointer.finish()) return 1;
  if (group->rank() == 0) std::printf("step %ld: loss %.4f\n", static_cast<long>(step), last_loss);
}
