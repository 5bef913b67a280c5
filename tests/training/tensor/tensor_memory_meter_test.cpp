#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"

namespace paceline {
namespace {

constexpr std::int64_t kElements = 1 << 20;  // float32: 4 MB

TEST(TensorMemoryMeter, counts_what_lives_and_its_peak) {
  at::Tensor before = at::empty({kElements});
  TensorMemoryMeter meter;
  EXPECT_EQ(meter.bytes(), 0);
  {
    const at::Tensor first = at::empty({kElements});
    const at::Tensor view = first.narrow(0, 0, 10);
    EXPECT_EQ(meter.bytes(), 4 * kElements);
    const at::Tensor second = at::empty({2 * kElements});
    EXPECT_EQ(meter.bytes(), 12 * kElements);
  }
  before = at::Tensor();
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_EQ(meter.peak(), 12 * kElements);
  meter.begin_peak();
  EXPECT_EQ(meter.peak(), 0);
}

TEST(TensorMemoryMeter, sees_what_a_backward_pass_needs) {
  const TensorMemoryMeter meter;
  const at::Tensor weight = torch::randn({kElements}, torch::requires_grad());
  const std::int64_t parameters = meter.bytes();
  at::Tensor loss = (weight * weight).exp().sum();  // the graph keeps the exponentials
  EXPECT_GE(meter.bytes() - parameters, 4 * kElements);
  EXPECT_LT(meter.bytes() - parameters, 8 * kElements);
  loss.backward();
  loss = at::Tensor();
  EXPECT_LT(meter.bytes() - parameters, 5 * kElements);  // only the gradient remains
}

TEST(TensorMemoryMeter, tensors_may_outlive_it) {
  at::Tensor kept;
  {
    const TensorMemoryMeter meter;
    kept = at::ones({kElements});
  }
  EXPECT_EQ(kept.sum().item<float>(), static_cast<float>(kElements));
  kept = at::Tensor();
  const TensorMemoryMeter again;
  EXPECT_EQ(again.bytes(), 0);
}

TEST(TensorMemoryMeter, there_is_one) {
  const TensorMemoryMeter meter;
  expect_error(ErrorCode::kInvalid, {"measured already"}, [] { TensorMemoryMeter second; });
}

TEST(TensorMemoryMeter, also_in_symmetric_memory) {
  const auto results = harness::run_process_ranks(2, [](ProcessGroup& group) {
    const SymmetricTensors symmetric(group);
    const TensorMemoryMeter meter;
    const at::Tensor tensor = at::empty({kElements});
    return std::to_string(meter.bytes());
  });
  for (const auto& result : results) EXPECT_EQ(result.report, std::to_string(4 * kElements));
}

}  // namespace
}  // namespace paceline
