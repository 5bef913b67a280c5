// A model of your own divided into the stages of a pipeline: each rank has one stage, and a batch
// passes through them in micro-batches. With one rank the same program trains the whole model.
//
//   paceline run --nproc-per-node 3 own_pipeline

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "paceline/paceline.h"

constexpr int kBlocks = 6, kMicroBatches = 4, kSteps = 200;

// Makes the blocks [begin, end) of the model. Each block has its own seed, so its initial weights
// do not depend on how the model is divided, and its own name, by which checkpoints store it.
torch::nn::Sequential make_blocks(int begin, int end) {
  torch::nn::Sequential blocks;
  for (int block = begin; block < end; ++block) {
    torch::manual_seed(block);
    blocks->push_back("block" + std::to_string(block),
                      torch::nn::Linear(block == 0 ? 2 : 16, block == kBlocks - 1 ? 1 : 16));
    if (block < kBlocks - 1) blocks->push_back(torch::nn::Tanh());
  }
  return blocks;
}

int main() {
  const auto group = paceline::init_process_group();
  const int rank = group->rank(), ranks = group->world_size();
  auto stage = make_blocks(kBlocks * rank / ranks, kBlocks * (rank + 1) / ranks);
  paceline::Pipeline pipeline(group, paceline::pipeline_schedule("1f1b", ranks, kMicroBatches),
                              {paceline::make_stage(rank, stage)});
  paceline::optim::Adam optimizer(stage->parameters(), {.lr = 1e-2});
  optimizer.set_model_parts({.model = group});  // clip_grad_norm() uses the norm of all stages

  double last = 0;
  torch::manual_seed(100);  // all ranks draw the same batches; the first and last stages use them
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = torch::rand({64, 2}), y = torch::sin(3 * x.sum(1, true));
    const auto targets = y.chunk(kMicroBatches);
    std::vector<paceline::PipelineStage::Tensors> inputs;
    if (pipeline.has_first_stage()) inputs = paceline::split_micro_batches(x, kMicroBatches);
    optimizer.zero_grad();
    const auto done = pipeline.step(inputs, [&](const auto& outputs, int micro_batch) {
      return torch::mse_loss(outputs[0], targets[static_cast<std::size_t>(micro_batch)]);
    });
    paceline::optim::clip_grad_norm(optimizer, 1.0);
    optimizer.step();
    last = 0;
    for (const auto& loss : done.losses) last += loss.item<double>() / kMicroBatches;
  }
  // Only the last stage has the losses, but `paceline run` shows only the output of rank 0.
  group->broadcast(std::span(&last, 1), pipeline.last_stage_rank());
  if (rank == 0) std::printf("loss %.4f\n", last);
}
