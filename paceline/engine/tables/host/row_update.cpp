#include "paceline/engine/tables/host/row_update.h"

#include <array>
#include <bit>
#include <cmath>

#include "paceline/engine/optim_kernels/kernels.h"

namespace paceline::tables {

namespace {

// The values of Settings::optimizer: the index of each type in RowOptimizer.
enum Kind : std::uint32_t { kSgd, kAdam, kAdagrad, kRowAdagrad };

// The numbers of each optimizer, in the order in which Settings::of() writes them.
struct Numbers {
  const std::array<double, 4>& all;
  float at(std::size_t i) const { return static_cast<float>(all[i]); }
};

void step_adam(const Settings& settings, double lr, float* row, const float* gradient) {
  const Numbers numbers{settings.optimizer_numbers};
  const std::uint32_t width = settings.width;
  // The last element of the state counts the row's steps, as an integer.
  float& count = row[std::size_t{3} * width];
  const std::uint32_t step = std::bit_cast<std::uint32_t>(count) + 1;
  count = std::bit_cast<float>(step);
  const double beta1 = numbers.all[0], beta2 = numbers.all[1];
  optim::AdamKernelArguments arguments{
      .beta1 = numbers.at(0),
      .beta2 = numbers.at(1),
      .one_minus_beta1 = static_cast<float>(1 - beta1),
      .one_minus_beta2 = static_cast<float>(1 - beta2),
      .step_size = static_cast<float>(lr / (1 - std::pow(beta1, step))),
      .inverse_root_bias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
      .eps = numbers.at(2),
      .gradient_decay = numbers.at(3)};
  std::array<optim::WordSums, 3> sums;
  optim::adam_kernel(arguments, row, gradient, row + width, row + std::size_t{2} * width, width,
                     sums.data());
}

}  // namespace

std::uint32_t floats_of_row(const Settings& settings) {
  const std::uint32_t width = settings.width;
  switch (settings.optimizer) {
    case kSgd:
      return settings.optimizer_numbers[0] == 0 ? width : 2 * width;
    case kAdam:
      return 3 * width + 1;
    case kAdagrad:
      return 2 * width;
    default:
      return width + 1;
  }
}

void write_initial_values(const Settings& settings, Id id, float* row) {
  const std::uint64_t key = mix(settings.seed ^ mix(static_cast<std::uint64_t>(id)));
  const float range = settings.initial_range;
  for (std::uint32_t i = 0; i < settings.width; ++i) {
    const auto bits = static_cast<std::uint32_t>(mix(key + i) >> 40);  // 24 bits: exact as a float
    row[i] = range * (static_cast<float>(bits) * 0x1p-23F - 1);
  }
}

void write_new_row(const Settings& settings, Id id, float* row) {
  write_initial_values(settings, id, row);
  for (std::uint32_t i = settings.width; i < floats_of_row(settings); ++i) row[i] = 0;
}

void step_row(const Settings& settings, double lr, float* row, const float* gradient) {
  const Numbers numbers{settings.optimizer_numbers};
  const std::uint32_t width = settings.width;
  std::array<optim::WordSums, 2> sums;
  switch (settings.optimizer) {
    case kSgd:
      optim::sgd_kernel(
          {.lr = static_cast<float>(lr), .momentum = numbers.at(0), .weight_decay = numbers.at(1)},
          row, gradient, numbers.all[0] == 0 ? nullptr : row + width, width, sums.data());
      return;
    case kAdam:
      return step_adam(settings, lr, row, gradient);
    case kAdagrad:
      optim::adagrad_kernel(
          {.lr = static_cast<float>(lr), .eps = numbers.at(0), .weight_decay = numbers.at(1)}, row,
          gradient, row + width, width, sums.data());
      return;
    default:
      float& mean = row[width];
      mean += static_cast<float>(optim::sum_of_squares(gradient, width) / width);
      optim::sgd_kernel({.lr = static_cast<float>(lr) / (std::sqrt(mean) + numbers.at(0))}, row,
                        gradient, nullptr, width, sums.data());
  }
}

}  // namespace paceline::tables
