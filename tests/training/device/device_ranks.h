#pragma once

// Ranks as threads, each with a simulated device of its own: rank r has device r + 1, so that
// any use of device 0 reveals code that forgot to choose a device.

#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include "paceline/training/device/streams.h"

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

// A stream of the program, which is neither the default stream nor one of LibTorch's pool.
inline c10::Stream own_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, 100);
}

// Holds a stream until release() or its end: the work that is queued behind it waits.
class HeldStream {
 public:
  explicit HeldStream(const c10::Stream& stream) {
    simulated::Stream::of(stream.device_index(), stream.id())
        .push([end = end_.get_future().share()] { end.wait(); });
  }
  ~HeldStream() { release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void release() {
    if (!std::exchange(is_released_, true)) end_.set_value();
  }

 private:
  std::promise<void> end_;
  bool is_released_ = false;
};

// Calls `body` on `world_size` threads, at most 3, whose current device is their own, and expects
// that nothing used device 0.
inline void run_on_devices(int world_size, const DeviceBody& body,
                           harness::RanksOptions options = {}) {
  const std::uint64_t touches = simulated::num_touches(0);
  // A group of backend nccl works on the device that is current when it forms.
  options.adjust = [](int rank, GroupOptions& /*group*/) {
    set_current_device({c10::kCUDA, static_cast<c10::DeviceIndex>(rank + 1)});
  };
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
