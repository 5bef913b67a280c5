#pragma once

// A small training job for every strategy. Its initial values and its batches are the same on every
// device; each rank has different batches.
//
// Thread safety: none.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {

inline constexpr int kJobSteps = 5;

struct JobNetImpl : torch::nn::Cloneable<JobNetImpl> {
  explicit JobNetImpl(std::int64_t width) : width(width) { JobNetImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(32, width));
    second = register_module("second", torch::nn::Linear(width, width));
    third = register_module("third", torch::nn::Linear(width, 10));
  }
  at::Tensor forward(const at::Tensor& x) {
    return third(torch::relu(second(torch::relu(first(x)))));
  }
  std::int64_t width;
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(JobNet);

struct TrainingJob {
  // `batches_of`: the rank whose batches are used.
  TrainingJob(const Ranks& ranks, c10::Device device, int batches_of)
      : net(made(ranks.is_quick ? 64 : 512, device)), rank_(batches_of), device_(device) {}
  TrainingJob(const Ranks& ranks, c10::Device device) : TrainingJob(ranks, device, ranks.rank()) {}

  at::Tensor input(int step) const { return random({16, 32}, step, 0).to(device_); }
  // The mean squared error with respect to a random target.
  at::Tensor loss_of(const at::Tensor& output, int step) const {
    return torch::mse_loss(output, random({16, 10}, step, 1).to(device_));
  }

  JobNet net;

 private:
  static JobNet made(std::int64_t width, c10::Device device) {
    torch::manual_seed(5);
    JobNet net(width);
    net->to(device);
    return net;
  }
  at::Tensor random(at::IntArrayRef sizes, int step, int kind) const {
    const auto seed = static_cast<std::uint64_t>(1000 * step + 10 * rank_ + kind);
    return torch::randn(sizes, at::detail::createCPUGenerator(seed));
  }

  const int rank_;
  const c10::Device device_;
};

}  // namespace paceline::gpu_check
