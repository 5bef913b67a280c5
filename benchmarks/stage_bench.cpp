// The time from the end of a stage on rank 0 until the next stage on rank 1 of the same host has
// its input: as a message, and by reference. The two take turns for several rounds; each round's
// number is the median of its passes.
//
//   paceline run --nproc-per-node 2 stage_bench

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_memory.h"

#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;  // the same clock in all processes of a host
using Nanoseconds = Clock::duration::rep;
using Tensors = PipelineStage::Tensors;

Nanoseconds now() { return Clock::now().time_since_epoch().count(); }

struct Times {
  double until_input = 0, until_read = 0;  // microseconds, on rank 1
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Rank 0 writes `result` and passes it to rank 1, which adds up its elements.
Times measure(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& result, int passes) {
  const SymmetricBuffer moment = group->allocate_symmetric(sizeof(Nanoseconds));
  auto& given_at = *reinterpret_cast<Nanoseconds*>(moment.of(0));
  std::vector<double> until_input, until_read;
  const PipelineStage stage{.index = group->rank(), .forward = [&](const Tensors& inputs) {
                              if (group->rank() == 0) {
                                result.fill_(2);
                                given_at = now();
                                return Tensors{result};
                              }
                              until_input.push_back(static_cast<double>(now() - given_at) / 1e3);
                              const at::Tensor sum = inputs[0].sum();
                              until_read.push_back(static_cast<double>(now() - given_at) / 1e3);
                              return Tensors{sum};
                            }};
  Pipeline pipeline(group, pipeline_schedule("1f1b", 2, 1), {stage});
  const std::vector<Tensors> inputs(group->rank() == 0 ? 1 : 0, Tensors{at::ones({1})});
  for (int i = 0; i < passes; ++i) {
    pipeline.evaluate(inputs, [](const Tensors& outputs, int) { return outputs[0]; });
    group->barrier();
  }
  Times times;
  if (group->rank() == 1) times = {median(until_input), median(until_read)};
  group->broadcast(std::span(&times.until_input, 2), 1);
  return times;
}

void run(int rounds, int passes) {
  const auto group = init_process_group();
  const SymmetricTensors symmetric(*group);
  for (const std::int64_t kib : {256, 4096, 32768}) {
    const std::int64_t count = kib * 1024 / static_cast<std::int64_t>(sizeof(float));
    // Memory that the group has allocated itself is not lent, so `sent` goes as a message.
    const at::Tensor sent = empty_symmetric(*group, {count}), lent = at::ones({count});
    std::vector<double> input[2], read[2];
    for (int i = 0; i < 2 * rounds; ++i) {
      const Times times = measure(group, i % 2 == 0 ? sent : lent, passes);
      input[i % 2].push_back(times.until_input);
      read[i % 2].push_back(times.until_read);
    }
    if (group->rank() != 0) continue;
    for (const int way : {0, 1}) {
      fmt::print("{} KiB {}: us until the input is there {}, until it is read {}\n", kib,
                 way == 0 ? "as a message" : "by reference", with_spread(input[way]),
                 with_spread(read[way]));
    }
  }
}

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  int rounds = 5, passes = 60;
  CLI::App app("the time from one stage to the next on a host");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--passes", passes, "of a round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::benchmarks::run(rounds, passes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "stage_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
