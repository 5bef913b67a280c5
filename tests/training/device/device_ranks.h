#pragma once

// Ranks as threads, each with a simulated device of its own: rank r has device r + 1, so that
// any use of device 0 reveals code that forgot to choose a device.

#include <cstdint>
#include <functional>
#include <mutex>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>

#include "tests/harness/simulated_cuda/simulated_cuda.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {

using DeviceBody = std::function<void(ProcessGroup& group, c10::Device device)>;

// All threads share LibTorch's default generator. So this function uses a generator of its own, and
// modules, whose initial weights come from the default one, are made by one thread at a time.
inline at::Tensor random_tensor(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}
template <class Make>
auto made_with_seed(std::uint64_t seed, const Make& make) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  at::manual_seed(seed);
  return make();
}

// Calls `body` on `world_size` threads, at most 3, whose current device is their own, and expects
// that nothing used device 0.
inline void run_on_devices(int world_size, const DeviceBody& body,
                           const harness::RanksOptions& options = {}) {
  const std::uint64_t touches = simulated::num_touches(0);
  harness::run_ranks_ok(
      world_size,
      [&](ProcessGroup& group) {
        const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.rank() + 1));
        const c10::DeviceGuard guard(device);
        body(group, device);
      },
      options);
  EXPECT_EQ(simulated::num_touches(0), touches) << "a rank used device 0, which is not its own";
}

}  // namespace paceline
