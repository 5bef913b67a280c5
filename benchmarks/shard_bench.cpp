// A step of a GPT of 31 million parameters, and the memory that the job takes, with one stage of
// fully_shard():
//
//   paceline run --nproc-per-node 2 shard_bench --stage 3
//
// Stage 0 is DistributedDataParallel, each rank with an optimizer of its own.
// shard_beside_python.py runs it in turns with PyTorch's FSDP2 and DDP. Memory is PSS
// (proc_pid_smaps(5)), which counts a page that several processes have once in all; of all ranks
// together, after the last step.

#include <chrono>
#include <fstream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/collectives/group/init.h"
#include "paceline/core/check.h"
#include "paceline/models/gpt.h"
#include "paceline/optim/adam.h"
#include "paceline/parallel/fully_shard.h"
#include "paceline/tensor/symmetric_tensors.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSequences = 2, kTokens = 128;  // of a rank
constexpr models::GptOptions kGpt{
    .vocabulary = 256, .context = kTokens, .layers = 10, .width = 512, .heads = 8, .dropout = 0};

double own_pss_mb() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && rollup >> kilobytes) return kilobytes / 1024;
  }
  fail(ErrorCode::kSystem, "/proc/self/smaps_rollup has no line Pss:");
}

void run(int stage, int steps) {
  const auto group = init_process_group();
  const SymmetricTensors symmetric_tensors(*group);
  torch::manual_seed(0);
  const auto module = models::Gpt(kGpt).ptr();
  const auto parameters = module->parameters();
  optim::Adam optimizer(parameters, {.lr = 1e-4});
  DistributedDataParallelOptions options;
  if (stage > 0) options = sharded_options(optimizer, {.stage = stage});
  DistributedDataParallel<models::GptImpl> model(module, group, options);
  const at::Tensor tokens = at::randint(256, {kSequences, kTokens + 1}, at::kLong);
  const at::Tensor inputs = tokens.narrow(1, 0, kTokens).contiguous();
  const at::Tensor targets = tokens.narrow(1, 1, kTokens).contiguous();
  const auto take_steps = [&] {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      models::next_token_loss(model.forward(inputs), targets).backward();
      optimizer.step();
    }
  };
  take_steps();
  group->barrier();
  const auto begin = Clock::now();
  take_steps();
  group->barrier();
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  const double megabytes = all_reduce_value(*group, own_pss_mb(), ReduceOp::kSum);
  if (group->rank() != 0) return;
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  fmt::print("ms a step: {:.4f}\nPSS of all ranks, MB: {:.2f}\nparameters: {}\n", ms / steps,
             megabytes, elements);
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int stage = 3;
  int steps = 20;
  CLI::App app("a step of a GPT and its memory, divided among the ranks");
  app.add_option("--stage", stage, "of fully_shard(); 0: DistributedDataParallel")
      ->check(CLI::Range(0, 3));
  app.add_option("--steps", steps, "timed, after as many others")->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(stage, steps);
  } catch (const std::exception& error) {
    fmt::print(stderr, "shard_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
