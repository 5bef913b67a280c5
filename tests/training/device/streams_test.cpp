// Streams and events by LibTorch's generic interface, on simulated CUDA devices.

#include "paceline/training/device/streams.h"

#include <chrono>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "paceline/training/device/stream_join.h"

#include "tests/harness/simulated_cuda/simulated_cuda.h"

namespace paceline {
namespace {

const c10::Device kDevice(c10::kCUDA, 1);

// Adds 1 to `values` on the stream, which takes so long that a missing wait is certain to be seen.
void add_slowly(const at::Tensor& values, const c10::Stream& stream) {
  simulated::Stream::of(stream.device_index(), stream.id()).push([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  });
  const c10::StreamGuard guard(stream);
  values.copy_(torch::ones(values.sizes()).pin_memory(), /*non_blocking=*/true);
}

TEST(StreamJoin, waits_for_every_stream_that_was_noted) {
  const c10::DeviceGuard device(kDevice);
  const c10::Stream first = side_stream(kDevice, SideStream::kToHost);
  const c10::Stream second = side_stream(kDevice, SideStream::kToDevice);
  for (const bool both : {false, true}) {
    const at::Tensor one = torch::zeros({100}, kDevice), other = torch::zeros({100}, kDevice);
    simulated::Stream::of(kDevice.index(), 0).drain();
    StreamJoin join(kDevice);
    for (const auto& [values, stream] : {std::pair(one, first), std::pair(other, second)}) {
      if (stream == second && !both) continue;
      add_slowly(values, stream);
      const c10::StreamGuard guard(stream);
      join.note();
    }
    join.join();
    EXPECT_EQ((one + other).sum().item<float>(), both ? 200 : 100);
  }
}

TEST(StreamJoin, does_nothing_for_a_cpu) {
  StreamJoin join{c10::Device(c10::kCPU)};
  join.note();
  join.join();
}

}  // namespace
}  // namespace paceline
