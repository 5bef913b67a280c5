#include "paceline/train/matrix_speed.h"

#include <chrono>

#include <ATen/ATen.h>

#include "paceline/models/linear.h"

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
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> taken{};
  int count = 0;
  for (; taken < kLongEnough; taken = std::chrono::steady_clock::now() - begin, ++count)
    models::apply_linear(a, b);
  return all_reduce_value(group, count * kOperations / taken.count());
}

}  // namespace paceline::train
