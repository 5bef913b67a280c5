#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

constexpr std::int64_t kLarge = 1 << 18;  // float32: 1 MB

bool is_symmetric(ProcessGroup& group, const at::Tensor& tensor) {
  return group.is_symmetric(dense_view(tensor));
}

void expect_reports(const harness::ProcessBody& body, const std::string& expected,
                    const harness::RanksOptions& options = {}) {
  for (const auto& result : harness::run_process_ranks(2, body, options))
    EXPECT_EQ(result.report, expected);
}

TEST(SymmetricTensors, large_tensors_are_symmetric_while_the_object_lives) {
  expect_reports(
      [](ProcessGroup& group) {
        std::optional<SymmetricTensors> symmetric(std::in_place, group);
        const at::Tensor large = at::randn({kLarge});
        const at::Tensor result = at::mm(at::randn({512, 8}), at::randn({8, 512}));
        const at::Tensor small = at::randn({16});
        std::string report = fmt::format("{} {} {}", is_symmetric(group, large),
                                         is_symmetric(group, result), is_symmetric(group, small));
        symmetric.reset();
        report += fmt::format(" {}", is_symmetric(group, at::randn({kLarge})));
        // The old tensor is still usable after the object has ended.
        const at::Tensor ones = at::ones_like(large);
        large.copy_(ones);
        all_reduce(group, large);
        return report + (at::equal(large, 2 * ones) ? " right" : " wrong");
      },
      "true true false false right");
}

TEST(SymmetricTensors, freed_memory_is_used_again) {
  expect_reports(
      [](ProcessGroup& group) {
        const SymmetricTensors symmetric(group);
        const void* const first = at::empty({kLarge}).data_ptr();
        const void* const second = at::empty({kLarge}).data_ptr();
        return std::string(first == second ? "again" : "elsewhere");
      },
      "again");
}

// oneDNN frees its scratch memory by address alone.
TEST(SymmetricTensors, convolutions_and_blocks_freed_by_address_work) {
  expect_reports(
      [](ProcessGroup& group) {
        torch::manual_seed(1);
        torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(16, 64, 3).padding(1));
        const at::Tensor images = at::randn({32, 16, 32, 32});
        const at::Tensor expected = convolution(images).detach().clone();
        const SymmetricTensors symmetric(group);
        for (int round = 0; round < 3; ++round) {
          if (!at::allclose(convolution(images.clone()), expected, 1e-4, 1e-5))
            return std::string("wrong");
        }
        void* const block = c10::GetCPUAllocator()->raw_allocate(kLarge);
        c10::GetCPUAllocator()->raw_deallocate(block);
        return std::string("right");
      },
      "right");
}

TEST(SymmetricTensors, tensors_outlive_object_and_group) {
  const auto results = harness::run_process_ranks(2, [](ProcessGroup& group) {
    const auto part = group.split(0, group.rank());
    static std::optional<at::Tensor> kept;
    {
      const SymmetricTensors symmetric(*part);
      kept = at::full({kLarge}, group.rank() + 1);
    }
    return std::string("made");
  });
  for (const auto& result : results) EXPECT_EQ(result.report, "made");
}

TEST(SymmetricTensors, a_full_area_means_usual_memory) {
  expect_reports(
      [](ProcessGroup& group) {
        const SymmetricTensors symmetric(group, kLarge * sizeof(float));
        const at::Tensor fits = at::ones({kLarge});
        const at::Tensor does_not = at::ones({kLarge});
        all_reduce(group, does_not);
        return fmt::format("{} {} {}", is_symmetric(group, fits), is_symmetric(group, does_not),
                           does_not.sum().item<double>() == 2.0 * kLarge);
      },
      "true false true");
}

TEST(SymmetricTensors, without_shared_memory_nothing_happens) {
  expect_reports(
      [](ProcessGroup& group) {
        const SymmetricTensors symmetric(group);
        // This would be an error if tensors were in the group's memory.
        const SymmetricTensors again(group);
        return std::string("nothing");
      },
      "nothing", {.transport = TransportKind::kTcp});
}

TEST(SymmetricTensors, two_at_a_time_are_refused) {
  for (const auto& result : harness::run_process_ranks(2, [](ProcessGroup& group) {
         const SymmetricTensors symmetric(group);
         const SymmetricTensors again(group);
         return std::string();
       })) {
    EXPECT_TRUE(result.threw);
    EXPECT_EQ(result.code, ErrorCode::kInvalid);
  }
}

}  // namespace
}  // namespace paceline
