// The checks that need the headers of CUDA and NCCL, and a LibTorch that is linked to both:
// LibTorch's own ProcessGroupNCCL, and CUDA graphs.

#include <fmt/format.h>

#include "apps/gpu_check/rank/ranks.h"

#if PACELINE_GPU_CHECK_CUDA

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/torch.h>

#include "paceline/engine/core/json_text.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/collectives.h"

#include "apps/gpu_check/rank/training_job.h"

namespace paceline::gpu_check {
namespace {

constexpr double kRate = 0.05;

// Trains with SGD on the mean of all ranks' gradients, written by hand so that both libraries take
// the same steps. `reduce` adds up a gradient over all ranks. Returns the losses.
template <class Reduce>
std::vector<at::Tensor> losses_with(const Ranks& ranks, const Reduce& reduce) {
  TrainingJob job(ranks, ranks.device);
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kJobSteps; ++step) {
    job.net->zero_grad();
    const at::Tensor loss = job.loss_of(job.net->forward(job.input(step)), step);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : job.net->parameters()) {
      at::Tensor gradient = parameter.grad();
      reduce(gradient);
      parameter.sub_(gradient, kRate / ranks.world_size());
    }
    losses.push_back(loss.detach());
  }
  return losses;
}

}  // namespace

bool has_cuda_headers() { return true; }

CheckOutcome check_against_c10d(const Ranks& ranks) {
  const auto store =
      c10::make_intrusive<c10d::FileStore>(ranks.folder + "/c10d", ranks.world_size());
  const auto theirs =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, ranks.rank(), ranks.world_size());
  const auto expected = losses_with(ranks, [&](const at::Tensor& gradient) {
    std::vector<at::Tensor> list{gradient};
    theirs->allreduce(list)->wait();
  });
  const auto found =
      losses_with(ranks, [&](const at::Tensor& gradient) { all_reduce(ranks.group, gradient); });
  const double difference =
      require_close(found, expected, "the losses compared with ProcessGroupNCCL");
  return passed(fmt::format("same losses, up to {:.1e}", difference),
                json_text(nlohmann::json{{"largest_difference", difference}}));
}

// Captures one step with a collective in the middle, then replays it on other inputs.
CheckOutcome check_graph(const Ranks& ranks) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, ranks.device.index());
  const c10::cuda::CUDAStreamGuard guard(stream);
  const at::Tensor weights = torch::full({64, 64}, 1.0 / 64, ranks.device);
  const at::Tensor input = torch::ones({64, 64}, ranks.device);
  at::Tensor output;
  const auto step = [&] {
    output = input.matmul(weights);
    all_reduce(ranks.group, output);
    output = output + 1;
  };
  for (int i = 0; i < 3; ++i) step();  // libraries allocate in their first calls
  wait_for_device(ranks, "the steps before the capture");
  ranks.group->barrier();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  for (int i = 1; i <= 5; ++i) {
    input.fill_(i);
    graph.replay();
    const double found = output.mean().item<double>();
    const double expected = i * ranks.world_size() + 1;
    if (std::abs(found - expected) > 1e-3)
      throw CheckFailed(fmt::format("replay {}: {} instead of {}", i, found, expected));
  }
  return passed();
}

}  // namespace paceline::gpu_check

#else

namespace paceline::gpu_check {

constexpr const char* kWhyNot =
    "the program was built without the headers of CUDA and NCCL, or with a LibTorch without CUDA";

bool has_cuda_headers() { return false; }
CheckOutcome check_against_c10d(const Ranks& /*ranks*/) { return not_here(kWhyNot); }
CheckOutcome check_graph(const Ranks& /*ranks*/) { return not_here(kWhyNot); }

}  // namespace paceline::gpu_check

#endif
