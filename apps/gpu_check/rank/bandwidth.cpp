// The bandwidth of all-reduce, and of a copy within the GPU for comparison.

#include <chrono>

#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/core/json_text.h"
#include "paceline/training/tensor/collectives.h"

#include "apps/gpu_check/rank/ranks.h"

namespace paceline::gpu_check {
namespace {

constexpr std::int64_t kMegabyte = 1 << 20;
constexpr int kWarmUp = 3;
constexpr double kGiga = 1e9;

template <class Call>
double seconds_of(const Ranks& ranks, int calls, const Call& call) {
  for (int i = 0; i < kWarmUp; ++i) call();
  wait_for_device(ranks, "the calls before the measurement");
  ranks.group->barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  wait_for_device(ranks, "the measured calls");
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  return all_reduce_value(ranks.group, time.count(), ReduceOp::kMax) / calls;
}

}  // namespace

CheckOutcome check_bandwidth(const Ranks& ranks) {
  const int calls = ranks.is_quick ? 3 : 20;
  const double size = ranks.world_size();
  nlohmann::json figures;
  std::string text;
  for (const std::int64_t megabytes : {1, 16, 256}) {
    if (ranks.is_quick && megabytes > 1) break;
    const std::int64_t bytes = megabytes * kMegabyte;
    const at::Tensor values = torch::zeros({bytes / 4}, ranks.device);
    const at::Tensor copy = torch::empty_like(values);
    const double reduce = seconds_of(ranks, calls, [&] { all_reduce(ranks.group, values); });
    const double moved =
        seconds_of(ranks, calls, [&] { copy.copy_(values, /*non_blocking=*/true); });
    const double algorithm = static_cast<double>(bytes) / reduce / kGiga;
    const double bus = algorithm * 2 * (size - 1) / size;
    const double within = 2 * static_cast<double>(bytes) / moved / kGiga;
    figures[fmt::format("{}_mb", megabytes)] = {{"all_reduce_ms", reduce * 1e3},
                                                {"algorithm_gb_s", algorithm},
                                                {"bus_gb_s", bus},
                                                {"copy_gb_s", within}};
    // With a single rank the bus bandwidth is 0.
    text =
        fmt::format("{} MB: {:.2f} GB/s {}, a copy {:.0f} GB/s", megabytes,
                    size > 1 ? bus : algorithm, size > 1 ? "bus bandwidth" : "in one rank", within);
  }
  return passed(text, json_text(figures));
}

}  // namespace paceline::gpu_check
