// Training in bfloat16 with warm-up, a cosine schedule and clipping. The optimizer keeps float32
// values; Autocast computes the forward pass in bfloat16:
//
//   paceline run --nproc-per-node 2 mixed_precision

#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace optim = paceline::optim;

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(1);
  const auto points = torch::rand({2000, 2}) * 2 - 1;
  const auto inside = (points.square().sum(1) < 1).to(torch::kLong);
  const auto samples =
      std::make_shared<data::TensorDataset>("points", std::vector<at::Tensor>{points, inside});
  const data::DistributedSampler sampler(samples->size(), group);
  data::DataLoader loader(samples, sampler, {.batch_size = 20});

  paceline::DistributedDataParallel model(
      torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 2)),
      group);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const int epochs = 4;
  optim::CosineAnnealingLR schedule(optimizer,
                                    {.T_max = epochs * loader.num_batches(), .warmup_steps = 20});
  double last = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const paceline::Autocast autocast(at::kBFloat16);
        loss = torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
      }
      loss.backward();
      optim::clip_grad_norm(model.parameters(), 1.0);
      optimizer.step();
      schedule.step();
      last = loss.item<double>();
    }
  }
  last = paceline::all_reduce_value(group, last) / group->world_size();
  if (group->rank() == 0)
    std::printf("loss %.4f, weights are %s\n", last,
                model.parameters()[0].scalar_type() == at::kFloat ? "float32" : "16 bits");
}
