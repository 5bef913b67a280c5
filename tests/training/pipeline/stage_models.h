#pragma once

// A chain of stages, and the expected results: the same chain in one process, one micro-batch after
// the other.

#include <functional>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "paceline/training/pipeline/pipeline.h"

namespace paceline {

inline std::shared_ptr<ProcessGroup> loan_of(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

constexpr std::int64_t kWidth = 6;

// Float32 values that depend only on `seed`; no generator is used.
inline at::Tensor made_up(at::IntArrayRef sizes, double seed) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * 1.37 + seed).sin().reshape(sizes).to(at::kFloat);
}

// Two linear layers with a norm and a GELU; block_stage() adds the input to their output.
inline torch::nn::Sequential block(int stage) {
  torch::nn::Sequential model(
      torch::nn::LayerNorm(torch::nn::LayerNormOptions(std::vector<std::int64_t>{kWidth})),
      torch::nn::Linear(kWidth, 2 * kWidth), torch::nn::GELU(),
      torch::nn::Linear(2 * kWidth, kWidth));
  torch::NoGradGuard no_gradients;
  double seed = stage;
  for (auto& parameter : model->parameters())
    parameter.copy_(made_up(parameter.sizes(), seed += 0.61) * 0.5);
  return model;
}

inline PipelineStage block_stage(int index) {
  auto model = block(index);
  return {.index = index,
          .forward =
              [model](const PipelineStage::Tensors& inputs) mutable {
                return PipelineStage::Tensors{inputs[0] + model->forward(inputs[0])};
              },
          .parameters = model->parameters()};
}

struct Oracle {
  std::vector<std::vector<at::Tensor>> gradients;  // one list for each stage
  std::vector<at::Tensor> losses;
};

inline Oracle run_in_one_process(const std::vector<PipelineStage>& stages,
                                 const std::vector<PipelineStage::Tensors>& micro_batches,
                                 const Pipeline::Loss& loss) {
  Oracle oracle;
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    auto tensors = micro_batches[i];
    for (const PipelineStage& stage : stages) tensors = stage.forward(tensors);
    const auto value = loss(tensors, static_cast<int>(i));
    oracle.losses.push_back(value.detach());
    (value / static_cast<int>(micro_batches.size())).backward();
  }
  for (const PipelineStage& stage : stages) {
    oracle.gradients.emplace_back();
    for (const auto& parameter : stage.parameters)
      oracle.gradients.back().push_back(parameter.grad());
  }
  return oracle;
}

}  // namespace paceline
