// Tests of the simulated devices themselves: their results, and the mistakes that they make
// visible.

#include "tests/harness/simulated_cuda/simulated_cuda.h"

#include <gtest/gtest.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "paceline/training/models/cnn.h"

namespace paceline {
namespace {

const c10::Device kFirst(c10::kCUDA, 0), kSecond(c10::kCUDA, 1);

// Keeps the stream busy for so long that the tests notice every missing wait.
void occupy(const c10::Stream& stream) {
  simulated::Stream::of(stream.device_index(), stream.id()).push([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  });
}

c10::Stream other_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device);
}

TEST(SimulatedCuda, is_available_to_libtorch) {
  EXPECT_TRUE(torch::cuda::is_available());
  EXPECT_EQ(torch::cuda::device_count(), 4u);
}

TEST(SimulatedCuda, trains_to_the_losses_of_the_cpu) {
  const auto make = [] {
    torch::manual_seed(1);
    return models::MnistNet();
  };
  models::MnistNet host = make(), device = make();
  device->to(kSecond);
  torch::optim::SGD host_step(host->parameters(), 0.05), device_step(device->parameters(), 0.05);
  torch::manual_seed(2);
  const at::Tensor images = torch::randn({8, 1, 28, 28}), labels = torch::randint(10, {8});
  for (int step = 0; step < 3; ++step) {
    host_step.zero_grad();
    device_step.zero_grad();
    const at::Tensor host_loss = torch::cross_entropy_loss(host->forward(images), labels);
    const at::Tensor device_loss =
        torch::cross_entropy_loss(device->forward(images.to(kSecond)), labels.to(kSecond));
    EXPECT_EQ(device_loss.device(), kSecond);
    EXPECT_NEAR(device_loss.item<float>(), host_loss.item<float>(), 1e-5);
    host_loss.backward();
    device_loss.backward();
    host_step.step();
    device_step.step();
  }
}

TEST(SimulatedCuda, shows_a_stream_that_does_not_wait_for_another_one) {
  const at::Tensor values = torch::zeros({1000}, kFirst);
  for (const bool waits : {false, true}) {
    values.zero_();
    EXPECT_EQ(values.sum().item<float>(), 0);
    const c10::Stream side = other_stream(kFirst);
    occupy(side);
    {
      const c10::StreamGuard guard(side);
      values.fill_(7);
    }
    if (waits) {
      c10::Event done(c10::kCUDA);
      done.record(side);
      done.block(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kFirst));
    }
    EXPECT_EQ(values.sum().item<float>(), waits ? 7000 : 0);
    side.synchronize();
  }
}

TEST(SimulatedCuda, shows_a_read_of_pinned_memory_before_the_copy_has_ended) {
  const at::Tensor values = torch::full({100}, 3.0F, kFirst);
  const at::Tensor pinned = torch::zeros({100}, torch::TensorOptions().pinned_memory(true));
  ASSERT_TRUE(pinned.is_pinned());
  const c10::Stream own = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kFirst);
  occupy(own);
  pinned.copy_(values, true);
  EXPECT_EQ(pinned.sum().item<float>(), 0);
  own.synchronize();
  EXPECT_EQ(pinned.sum().item<float>(), 300);
}

TEST(SimulatedCuda, shows_memory_that_was_released_while_another_stream_used_it) {
  for (const bool is_recorded : {false, true}) {
    const c10::Stream side = other_stream(kFirst);
    const at::Tensor sum = torch::zeros({100}, kFirst);
    {
      const at::Tensor values = torch::ones({100}, kFirst);
      c10::impl::VirtualGuardImpl(c10::kCUDA)
          .synchronizeStream(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(kFirst));
      occupy(side);
      const c10::StreamGuard guard(side);
      sum.copy_(values, true);
      if (is_recorded) values.record_stream(side);
    }
    side.synchronize();
    EXPECT_EQ(sum.sum().isnan().item<bool>(), !is_recorded);
  }
}

TEST(SimulatedCudaDeathTest, ends_a_program_that_reads_device_memory) {
  const at::Tensor values = torch::ones({4}, kFirst);
  // EXPECT_EXIT forks. Without idle streams, the child would inherit device pages that a task has
  // opened to the host, and locks that no thread of the child releases.
  for (int device = 0; device < simulated::num_devices(); ++device)
    simulated::Stream::for_each(device, [](simulated::Stream& stream) { stream.drain(); });
  EXPECT_EXIT({ std::printf("%g", values.data_ptr<float>()[0]); }, testing::KilledBySignal(SIGSEGV),
              "");
}

TEST(SimulatedCuda, refuses_mixed_devices) {
  EXPECT_THROW(torch::zeros({2}, kFirst) + torch::zeros({2}), c10::Error);
}

TEST(SimulatedCuda, has_no_more_memory_than_the_limit) {
  const std::size_t before = simulated::live_bytes(1);
  simulated::set_memory_limit(1, before + (1 << 20));
  {
    const at::Tensor half = torch::empty({1 << 17}, kSecond);
    EXPECT_EQ(simulated::live_bytes(1), before + (1 << 19));
    EXPECT_THROW(torch::empty({1 << 18}, kSecond), c10::OutOfMemoryError);
  }
  EXPECT_EQ(simulated::live_bytes(1), before);
  simulated::set_memory_limit(1, 0);
}

TEST(SimulatedCuda, counts_synchronisations_of_the_host_and_uses_of_a_device) {
  const std::uint64_t before = simulated::num_touches(3);
  const at::Tensor values = torch::ones({10}, kSecond);
  simulated::reset_counts();
  const at::Tensor doubled = values * 2 + 1;
  EXPECT_EQ(simulated::counts().synchronisations, 0u);
  EXPECT_EQ(doubled.sum().item<float>(), 30);
  EXPECT_EQ(simulated::counts().synchronisations, 1u);
  EXPECT_EQ(doubled.cpu().numel(), 10);
  EXPECT_EQ(simulated::counts().synchronisations, 2u);
  EXPECT_EQ(simulated::num_touches(3), before);
}

}  // namespace
}  // namespace paceline
