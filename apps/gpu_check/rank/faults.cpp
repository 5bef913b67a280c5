// Ranks that fail on purpose: the last rank is at fault, and the others must get an error that
// names it within a time limit.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/backends/nccl/cuda_api.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/collectives.h"

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kCallTimeout = 5s;  // of each call
constexpr std::chrono::seconds kNameLimit{20};

// A passing outcome that reports the error: its text has the beginning of the error's text, and its
// figures have all of it.
CheckOutcome named(const char* what, std::chrono::steady_clock::time_point begin,
                   const std::string& error) {
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return passed(fmt::format("{} after {:.1f} s: {}", what, time.count(),
                            error.substr(0, error.find_first_of(";\n"))),
                json_text(nlohmann::json{{"seconds", time.count()}, {"error", error}}));
}

int rank_at_fault(const Ranks& ranks) { return ranks.world_size() - 1; }

bool names(const Error& error, int rank) {
  const auto ranks = error.ranks();
  return std::ranges::find(ranks, rank) != ranks.end() ||
         std::string(error.what()).find(fmt::format("rank {}", rank)) != std::string::npos;
}

// Makes calls until one of them throws an error that names the rank at fault. With NCCL, the first
// error may be that the device has not finished.
CheckOutcome expect_named(const Ranks& ranks) {
  const int fault = rank_at_fault(ranks);
  const auto begin = std::chrono::steady_clock::now();
  const at::Tensor values = torch::ones({1000}, ranks.device);
  std::string last = "no call has failed";
  while (std::chrono::steady_clock::now() - begin < kNameLimit) {
    try {
      all_reduce(ranks.group, values, ReduceOp::kSum, {.timeout = kCallTimeout});
      StreamEvent::after_current(ranks.device)
          .wait_on_host(Deadline::after(kCallTimeout), "the device");
    } catch (const Error& error) {
      last = error.what();
      if (names(error, fault)) return named("named", begin, last);
      std::this_thread::sleep_for(50ms);
    }
  }
  throw CheckFailed(fmt::format("rank {} was not named within {} s; the last error: {}", fault,
                                kNameLimit.count(), last));
}

// Makes a first call on all ranks. Ignores SIGTERM, because the launcher sends it to the other
// ranks after a failure, and these still have to report.
void connect(const Ranks& ranks) {
  std::signal(SIGTERM, SIG_IGN);
  all_reduce(ranks.group, torch::ones({1000}, ranks.device));
  wait_for_device(ranks, "the first collective");
  ranks.group->barrier();
}

// ---- memory

// Each layer has a quarter of a megabyte, because larger gradients are reduced in place, without a
// bucket.
constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kLayerBytes = kWidth * kWidth * 4;

struct DeepNetImpl : torch::nn::Module {
  explicit DeepNetImpl(int depth) {
    for (int i = 0; i < depth; ++i) {
      const auto options = torch::nn::LinearOptions(kWidth, kWidth).bias(false);
      layers.push_back(register_module(fmt::format("layer_{}", i), torch::nn::Linear(options)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = layer(x);
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(DeepNet);

// Allocates all memory of this rank's GPU except `room` bytes. The memory is never released,
// because the process ends with this check.
void leave_room(const Ranks& ranks, std::uint64_t room) {
  const CudaApi& cuda = CudaApi::load();
  std::size_t free = 0, total = 0;
  cuda.require(cuda.cudaMemGetInfo(&free, &total), "", "reading the memory of the GPU");
  if (free <= room) return;
  static const at::Tensor ballast =
      torch::empty({static_cast<std::int64_t>(free - room)},
                   torch::TensorOptions(ranks.device).dtype(at::kByte));
}

}  // namespace

CheckOutcome check_killed(const Ranks& ranks) {
  connect(ranks);
  if (ranks.rank() == rank_at_fault(ranks)) std::raise(SIGKILL);
  return expect_named(ranks);
}

CheckOutcome check_stopped(const Ranks& ranks) {
  connect(ranks);
  if (ranks.rank() == rank_at_fault(ranks)) std::raise(SIGSTOP);
  return expect_named(ranks);
}

CheckOutcome check_never_called(const Ranks& ranks) {
  connect(ranks);
  if (ranks.rank() == rank_at_fault(ranks)) {
    std::this_thread::sleep_for(2 * kNameLimit);
    _exit(kCheckFailed);
  }
  return expect_named(ranks);
}

CheckOutcome check_out_of_memory(const Ranks& ranks) {
  std::signal(SIGTERM, SIG_IGN);
  const int depth = ranks.is_quick ? 64 : 512;
  DeepNet net(depth);
  net->to(ranks.device);
  const std::int64_t bytes = depth * kLayerBytes;
  DistributedDataParallelOptions options;
  options.buckets.first_bytes = options.buckets.cap_bytes = static_cast<std::size_t>(2 * bytes);
  DistributedDataParallel<DeepNetImpl> model(net.ptr(), ranks.group, options);
  const at::Tensor input = torch::ones({8, kWidth}, ranks.device);
  const at::Tensor loss = model.forward(input).square().mean();
  wait_for_device(ranks, "the forward pass");
  ranks.group->barrier();
  // Leaves room for the gradients, but not for their bucket.
  if (ranks.rank() == rank_at_fault(ranks))
    leave_room(ranks, static_cast<std::uint64_t>(bytes + bytes / 2));
  ranks.group->barrier();
  const auto begin = std::chrono::steady_clock::now();
  try {
    loss.backward();
    wait_for_device(ranks, "the backward pass");
    ranks.group->barrier();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string name = fmt::format("rank {}", rank_at_fault(ranks));
    // If ranks share a GPU, another rank may run out of memory first.
    if (text.find("memory") == std::string::npos && text.find(name) == std::string::npos)
      throw CheckFailed("the error mentions neither the rank nor the lack of memory: " + text);
    return named("reported", begin, text);
  }
  throw CheckFailed("no error, although the bucket does not fit into the GPU's memory");
}

}  // namespace paceline::gpu_check
