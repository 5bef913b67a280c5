// CUDA tensors on a simulated GPU. The test implements LibTorch's device interface with streams and
// events that only record their calls, and with a backend that works on ordinary memory.

#include <atomic>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fake_library.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor/cuda_tensors.h"

namespace paceline {
namespace {

using testing::ElementsAre;

constexpr char kChoice[] = "cpu:paceline,cuda:notingdevice";

struct NotedEvent {
  c10::StreamId stream;  // the stream on which it was recorded
};
constexpr c10::StreamId kLibrarysStream = 99;
std::atomic<int> num_events = 0;
thread_local c10::StreamId current_stream = 0;
thread_local std::vector<c10::StreamId>
    waited_for;  // the streams of the events that this thread's stream waited for

class NotingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {c10::kCUDA, 0}; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    *event = new NotedEvent{stream.id()};
    ++num_events;
  }
  void block(void* event, const c10::Stream& stream) const override {
    EXPECT_EQ(stream.id(), current_stream);
    waited_for.push_back(static_cast<NotedEvent*>(event)->stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<NotedEvent*>(event);
    --num_events;
  }
};

// The streams of the events that the calls had to wait for.
std::mutex calls_mutex;
std::vector<c10::StreamId> calls;

void run_on_device(const Collective& call, int world_size) {
  ASSERT_NE(call.order, nullptr);
  ASSERT_NE(call.work, nullptr);
  {
    const std::lock_guard lock(calls_mutex);
    calls.push_back(static_cast<NotedEvent*>(call.order->ready())->stream);
  }
  if (reduces(call.op)) harness::sum_of_equals(call, world_size);
  call.work->queue(DeviceEvent(new NotedEvent{kLibrarysStream},
                               [](void* event) { delete static_cast<NotedEvent*>(event); }));
}

class DeviceTensorsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const NotingGuard guard;
    if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;
    c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::kCUDA)] = &guard;
    is_ours_ = true;
    harness::register_fake_library(
        "notingdevice", Device::kCuda, [](const LibraryContext& context) {
          return harness::FakeCalls{
              .supports =
                  [](Op op) {
                    return op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kReduce;
                  },
              .run = [world = context.world_size()](const Collective& call,
                                                    Deadline) { run_on_device(call, world); }};
        });
  }
  void SetUp() override {
    if (!is_ours_) GTEST_SKIP() << "this LibTorch has real CUDA devices";
    calls.clear();
  }
  void TearDown() override { EXPECT_EQ(num_events, 0) << "events stayed behind"; }

  static void run(const harness::RankBody& body) {
    harness::run_ranks_ok(2, body, {.backend = kChoice});
  }

  static inline bool is_ours_ = false;
};

TEST_F(DeviceTensorsTest, go_to_the_devices_backend_in_the_order_of_the_current_stream) {
  run([](ProcessGroup& group) {
    current_stream = 5;
    std::vector<float> data(10, 3.0f);
    const at::Tensor tensor = cuda_tensor(data);
    all_reduce(group, tensor);
    EXPECT_EQ(data, std::vector<float>(10, 6.0f));
    for (const c10::StreamId stream : waited_for) EXPECT_EQ(stream, kLibrarysStream);
    broadcast(group, tensor, 0);
    reduce(group, tensor, 1);
    EXPECT_EQ(data, std::vector<float>(10, group.rank() == 1 ? 12.0f : 6.0f));
  });
  EXPECT_EQ(calls, std::vector<c10::StreamId>(6, 5));
}

TEST_F(DeviceTensorsTest, an_asynchronous_call_belongs_to_the_stream_in_which_it_was_made) {
  run([](ProcessGroup& group) {
    std::vector<float> data(10, 3.0f);
    WorkPtr work;
    current_stream = 7;
    work = all_reduce(group, cuda_tensor(data), ReduceOp::kSum, {.async_op = true});
    current_stream = 8;
    work->wait();
    EXPECT_EQ(data, std::vector<float>(10, 6.0f));
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "tensors on the CPU go their own way";
  });
  EXPECT_THAT(calls, ElementsAre(7, 7));
}

TEST_F(DeviceTensorsTest, what_no_device_can_do_is_refused) {
  run([](ProcessGroup& group) {
    std::vector<float> data(10, 3.0f), other(10);
    const int peer = 1 - group.rank();
    expect_error(ErrorCode::kUnsupported, {"CUDA memory"},
                 [&] { send(group, cuda_tensor(data), peer); });
    expect_error(ErrorCode::kUnsupported, {"CUDA memory"},
                 [&] { recv(group, cuda_tensor(data), peer); });
    expect_error(ErrorCode::kInvalid, {"a tensor on cpu and one on cuda:0 in one call"}, [&] {
      scatter(group, cuda_tensor(data), {at::zeros({10}), at::zeros({10})}, group.rank());
    });
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "as good as before";
  });
}

TEST(DeviceRoute, is_by_the_kind_of_device) {
  std::vector<float> data(10);
  EXPECT_EQ(dense_view(at::zeros({3})).device, Device::kCpu);
  EXPECT_EQ(dense_view(cuda_tensor(data)).device, Device::kCuda);
  EXPECT_EQ(dense_view(cuda_tensor(data)).data, reinterpret_cast<std::byte*>(data.data()));
  EXPECT_EQ(dense_cpu_view(at::zeros({3})).count, 3u);
  expect_error(ErrorCode::kUnsupported, {"a tensor on cuda:0 cannot be used here"},
               [&] { dense_cpu_view(cuda_tensor(data)); });
  expect_error(ErrorCode::kUnsupported, {"a tensor on meta cannot be communicated"},
               [] { dense_view(at::empty({3}, at::TensorOptions(at::kMeta))); });
}

TEST(DeviceRoute, needs_a_kind_of_device_that_the_engine_knows) {
  EXPECT_NO_THROW(require_device(c10::Device(c10::kCPU), "it"));
  expect_error(ErrorCode::kUnsupported, {"cannot be communicated"},
               [] { require_device(c10::Device(c10::kXLA, 0), "it"); });
}

TEST(StreamOrder, needs_a_libtorch_that_knows_the_device) {
  expect_error(ErrorCode::kUnsupported, {"does not support such devices"},
               [] { order_in_current_stream(c10::Device(c10::kXLA, 0)); });
}

}  // namespace
}  // namespace paceline
