#pragma once

// Ranks as threads, each with a simulated device of its own: rank r has device r + 1, so that
// device 0 shows code that forgets to choose one.

#include <functional>

#include <gtest/gtest.h>

#include <c10/core/DeviceGuard.h>

#include "tests/harness/simulated_cuda/simulated_cuda.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {

using DeviceBody = std::function<void(ProcessGroup& group, c10::Device device)>;

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
