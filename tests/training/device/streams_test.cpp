// Streams and events by LibTorch's generic interface, on simulated CUDA devices.

#include "paceline/training/device/streams.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "tests/training/device/device_ranks.h"

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

// Releases the stream 30 ms from now.
std::jthread released_soon(HeldStream& held) {
  return std::jthread([&held] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held.release();
  });
}

TEST(StreamEvents, make_streams_wait) {
  const c10::DeviceGuard device(kDevice);
  const c10::Stream side = own_stream(kDevice);
  const at::Tensor values = torch::zeros({100}, kDevice);
  simulated::Stream::of(kDevice.index(), 0).drain();
  HeldStream held(side);
  add_slowly(values, side);
  const StreamEvent end = StreamEvent::after(side);
  EXPECT_FALSE(end.is_reached());
  end.block(current_stream_of(kDevice));
  const std::jthread releases = released_soon(held);
  EXPECT_EQ((values * 1).sum().item<float>(), 100);
}

TEST(StreamEvents, make_the_host_wait) {
  const c10::Stream side = own_stream(kDevice);
  HeldStream held(side);
  std::atomic<bool> has_ended = false;
  simulated::Stream::of(kDevice.index(), side.id()).push([&] { has_ended = true; });
  const StreamEvent end = StreamEvent::after(side);
  const std::jthread releases = released_soon(held);
  end.wait_on_host(Deadline::after(std::chrono::seconds(10)), "the test");
  EXPECT_TRUE(has_ended);
}

TEST(StreamEvents, keep_objects_until_they_are_reached) {
  const c10::DeviceGuard device(kDevice);
  const auto is_kept = [](const std::weak_ptr<int>& object) {
    keep_until(StreamEvent(), nullptr);  // destroys the objects whose event has been reached
    return !object.expired();
  };
  HeldStream held(own_stream(kDevice));
  auto object = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = object;
  const StreamEvent end = StreamEvent::after(own_stream(kDevice));
  keep_until(end, std::move(object));
  EXPECT_TRUE(is_kept(watched));
  held.release();
  end.wait_on_host(Deadline::after(std::chrono::seconds(10)), "the test");
  EXPECT_FALSE(is_kept(watched));
}

TEST(CurrentDevice, is_the_one_that_a_program_has_chosen) {
  std::jthread([] {  // a thread of its own, because the choice is the thread's
    set_current_device(c10::Device(c10::kCUDA, 2));
    EXPECT_EQ(with_index(c10::Device(c10::kCUDA)), c10::Device(c10::kCUDA, 2));
    set_current_device(c10::kCPU);
    EXPECT_EQ(torch::zeros({1}, c10::Device(c10::kCUDA)).device(), c10::Device(c10::kCUDA, 2));
  });
}

TEST(StreamJoin, does_nothing_for_a_cpu) {
  StreamJoin join{c10::Device(c10::kCPU)};
  join.note();
  join.join();
}

}  // namespace
}  // namespace paceline
