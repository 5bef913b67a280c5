#include "paceline/training/train/matrix_speed.h"

#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>

#include "paceline/training/models/linear.h"

namespace paceline::train {
namespace {

constexpr std::int64_t kSize = 768;
constexpr double kOperations = 2.0 * kSize * kSize * kSize;  // of a product
constexpr std::chrono::duration<double> kLongEnough{0.2};

}  // namespace

double measure_matrix_speed(ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::full({kSize, kSize}, 0.5), b = at::full({kSize, kSize}, 0.25);
  models::apply_linear(a, b);  // loads what is used for the first time
  group.barrier();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto fastest = std::chrono::duration<double>::max();
  for (auto last = begin; last - begin < kLongEnough;) {
    models::apply_linear(a, b);
    const auto now = Clock::now();
    fastest = std::min<std::chrono::duration<double>>(fastest, now - last);
    last = now;
  }
  return all_reduce_value(group, kOperations / fastest.count());
}

}  // namespace paceline::train
