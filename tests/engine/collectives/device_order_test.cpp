// Collectives on device memory. The device is a thread of this program and its memory is ordinary
// memory. Tested: which side waits for which event, and what happens when the device fails.

#include "paceline/engine/collectives/device_order.h"

#include <atomic>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/check.h"

#include "tests/harness/fake_library.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr char kChoice[] = "cpu:paceline,cuda:slowdevice";

// While true, the devices of all ranks may finish their queued work.
std::atomic<bool> device_may_finish = true;
std::atomic<bool> device_breaks = false;

using Event = std::shared_future<void>;
Event* event_of(void* raw) { return static_cast<Event*>(raw); }

// The device's stream: one thread for each call.
void run_on_device(const Collective& call, Deadline deadline, Mesh& mesh, int world_size) {
  if (device_breaks) fail(ErrorCode::kSystem, "rank {}: the device broke", mesh.rank());
  std::atomic<bool> is_given_up = false;
  const Event ready = call.order ? *event_of(call.order->ready()) : Event();
  const auto stream = [&, ready] {
    if (ready.valid()) ready.wait();
    while (!device_may_finish && !is_given_up) std::this_thread::yield();
    harness::sum_of_equals(call, world_size);
  };
  const auto end = DeviceEvent(new Event(std::async(std::launch::async, stream)),
                               [](void* event) { delete event_of(event); });
  if (call.work != nullptr) call.work->queue(end);
  const auto done = [&] { return event_of(end.get())->wait_for(0s) == std::future_status::ready; };
  try {
    poll_until(done, mesh, deadline, "all_reduce");
  } catch (...) {
    is_given_up = true;
    event_of(end.get())->wait();
    throw;
  }
}

// The order of a caller whose stream has already finished its work. Records the event that the
// stream must wait for.
class NotingOrder : public DeviceOrder {
 public:
  NotingOrder() {
    std::promise<void> now;
    ready_ = now.get_future().share();
    now.set_value();
  }
  void* ready() const override { return const_cast<Event*>(&ready_); }
  void wait_for(void* event) const override {
    ++num_waits;
    waited_for = *event_of(event);
  }

  mutable int num_waits = 0;
  mutable Event waited_for;

 private:
  Event ready_;
};

class DeviceOrderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool once = [] {
      harness::register_fake_library(
          "slowdevice", Device::kCuda, [](const LibraryContext& context) {
            return harness::FakeCalls{
                .supports = [](Op op) { return op == Op::kAllReduce; },
                .run = [&mesh = context.mesh, world = context.world_size()](
                           const Collective& call,
                           Deadline deadline) { run_on_device(call, deadline, mesh, world); }};
          });
      return true;
    }();
    ASSERT_TRUE(once);
  }
  void SetUp() override {
    device_may_finish = true;
    device_breaks = false;
  }

  static void run(const harness::RankBody& body, bool blocking_wait = false) {
    harness::run_ranks_ok(2, body, {.backend = kChoice, .adjust = [=](int, GroupOptions& options) {
                                      options.blocking_wait = blocking_wait;
                                    }});
  }
};

Buffer on_device(std::vector<float>& data) {
  return Buffer(data.data(), data.size(), Dtype::kFloat32, Device::kCuda);
}

void expect_everywhere(const std::vector<float>& data, float value) {
  EXPECT_EQ(data, std::vector<float>(data.size(), value));
}

// Waits until every rank has called pass(), without using the group.
class Gate {
 public:
  void pass() {
    ++arrived_;
    while (arrived_ < 2) std::this_thread::yield();
  }

 private:
  std::atomic<int> arrived_ = 0;
};

Call sum_of(Buffer buffer) { return {.op = Op::kAllReduce, .input = buffer, .output = buffer}; }

WorkPtr start_sum(ProcessGroup& group, Buffer buffer, const CallOptions& options) {
  return engine(group).start(sum_of(buffer), options);
}

void sum(ProcessGroup& group, Buffer buffer, const CallOptions& options) {
  engine(group).run(sum_of(buffer), options);
}

TEST(DeviceWork, names_the_sender_of_a_message_as_soon_as_a_wait_has_returned) {
  const auto order = std::make_shared<NotingOrder>();
  Work work([] { return std::string("recv"); }, order);
  std::promise<void> now;
  now.set_value();
  const auto delivered = std::make_shared<Event>(now.get_future().share());
  work.queue(delivered, false, 3);
  work.wait();
  EXPECT_FALSE(work.is_completed());
  EXPECT_EQ(work.source_rank(), 3);
  work.complete(nullptr, 3);
  EXPECT_EQ(work.source_rank(), 3);
}

TEST_F(DeviceOrderTest,
       a_wait_ends_when_the_device_has_the_call_and_the_stream_continues_behind_it) {
  device_may_finish = false;
  Gate gate;
  run([&](ProcessGroup& group) {
    const auto order = std::make_shared<NotingOrder>();
    std::vector<float> data(1000, 3.0f);
    auto held = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = held;
    const auto work =
        start_sum(group, on_device(data), {.keep_alive = std::move(held), .order = order});
    work->wait();
    EXPECT_EQ(order->num_waits, 1);
    ASSERT_TRUE(order->waited_for.valid());
    EXPECT_FALSE(work->is_completed());
    EXPECT_FALSE(watched.expired()) << "the device still uses it";
    EXPECT_EQ(order->waited_for.wait_for(0s), std::future_status::timeout);
    gate.pass();
    device_may_finish = true;
    order->waited_for.wait();  // as the caller's stream does
    expect_everywhere(data, 6.0f);
    while (!work->is_completed()) std::this_thread::yield();
    EXPECT_TRUE(watched.expired());
    work->wait();
    EXPECT_EQ(order->num_waits, 2) << "the stream of this wait is ordered, too";
  });
}

TEST_F(DeviceOrderTest, a_blocking_call_is_an_asynchronous_one_that_was_waited_for) {
  device_may_finish = false;
  Gate gate;
  run([&](ProcessGroup& group) {
    const auto order = std::make_shared<NotingOrder>();
    std::vector<float> data(1000, 3.0f);
    sum(group, on_device(data), {.order = order});
    EXPECT_EQ(order->num_waits, 1);
    gate.pass();
    device_may_finish = true;
    order->waited_for.wait();
    expect_everywhere(data, 6.0f);
  });
}

TEST_F(DeviceOrderTest, with_blocking_wait_a_wait_ends_with_the_result) {
  device_may_finish = false;
  Gate gate;
  run(
      [&](ProcessGroup& group) {
        const auto order = std::make_shared<NotingOrder>();
        std::vector<float> data(1000, 3.0f);
        const auto work = start_sum(group, on_device(data), {.order = order});
        EXPECT_THROW(work->wait(100ms), Error);
        gate.pass();
        device_may_finish = true;
        work->wait();
        expect_everywhere(data, 6.0f);
        EXPECT_TRUE(work->is_completed());
        EXPECT_EQ(order->num_waits, 0);
      },
      true);
}

TEST_F(DeviceOrderTest, without_an_order_a_call_ends_with_the_result) {
  run([](ProcessGroup& group) {
    std::vector<float> data(1000, 3.0f);
    group.all_reduce(on_device(data));
    expect_everywhere(data, 6.0f);
    group.all_reduce(on_device(data), ReduceOp::kSum, {.async_op = true})->wait();
    expect_everywhere(data, 12.0f);
  });
}

TEST_F(DeviceOrderTest, several_calls_keep_their_order) {
  run([](ProcessGroup& group) {
    const auto order = std::make_shared<NotingOrder>();
    std::vector<float> data(1000, 1.0f);
    WorkPtr last;
    for (int i = 0; i < 10; ++i) last = start_sum(group, on_device(data), {.order = order});
    last->wait();
    if (order->waited_for.valid()) order->waited_for.wait();
    expect_everywhere(data, 1024.0f);
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "the host's memory goes its own way";
  });
}

TEST_F(DeviceOrderTest, a_device_that_never_finishes_is_told_by_the_next_call) {
  device_may_finish = false;
  const auto results = harness::run_ranks(
      2,
      [](ProcessGroup& group) {
        std::vector<float> data(10, 1.0f);
        const auto work = start_sum(group, on_device(data),
                                    {.timeout = 1s, .order = std::make_shared<NotingOrder>()});
        work->wait();
        EXPECT_FALSE(work->is_completed());
        while (!work->is_completed()) std::this_thread::yield();
        EXPECT_THROW(work->wait(), Error) << "the second end has an error";
        group.barrier();
      },
      {.backend = kChoice});
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr("all_reduce of group world timed out"));
  }
}

TEST_F(DeviceOrderTest, a_failure_before_the_device_has_the_call_is_the_waits_error) {
  device_breaks = true;
  for (const auto& result : harness::run_ranks(2,
                                               [](ProcessGroup& group) {
                                                 std::vector<float> data(10, 1.0f);
                                                 sum(group, on_device(data),
                                                     {.order = std::make_shared<NotingOrder>()});
                                               },
                                               {.backend = kChoice})) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr("the device broke"));
  }
}

TEST_F(DeviceOrderTest, a_group_that_goes_lets_the_device_finish_what_was_waited_for) {
  device_may_finish = false;
  std::vector<std::vector<float>> data(2, std::vector<float>(1000, 3.0f));
  std::atomic<int> waited = 0;
  std::jthread later([&] {
    while (waited < 2) std::this_thread::yield();
    std::this_thread::sleep_for(50ms);  // long enough for the groups to have begun to end
    device_may_finish = true;
  });
  run([&](ProcessGroup& group) {
    auto& mine = data[static_cast<std::size_t>(group.rank())];
    sum(group, on_device(mine), {.order = std::make_shared<NotingOrder>()});
    ++waited;
  });
  for (const auto& result : data) expect_everywhere(result, 6.0f);
}

// All calls that form a group have number 0.
TEST_F(DeviceOrderTest,
       a_library_that_connects_at_once_leaves_no_time_between_the_calls_of_forming) {
  for (const TransportKind transport :
       {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp}) {
    for (int round = 0; round < 20; ++round) {
      harness::run_ranks_ok(3,
                            [](ProcessGroup& group) { EXPECT_EQ(all_reduce_value(group, 1), 3); },
                            {.transport = transport, .backend = kChoice});
    }
  }
}

TEST_F(DeviceOrderTest, operations_without_a_form_for_devices_are_refused) {
  run([](ProcessGroup& group) {
    std::vector<float> data(10, 1.0f), all(20);
    const std::vector<std::size_t> counts = {10, 10};
    const Buffer buffer = on_device(data);
    const auto expect_refused = [](auto&& call) {
      try {
        call();
        ADD_FAILURE() << "was not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("host"));
      }
    };
    expect_refused([&] { group.all_reduce_coalesced(std::vector{buffer}); });
    expect_refused([&] { group.all_gather_v(on_device(all), buffer, counts); });
    expect_refused([&] { group.broadcast(buffer, 0); });
    expect_refused([&] { group.send(buffer, 1 - group.rank()); });
    EXPECT_EQ(all_reduce_value(group, 1), 2);
  });
}

}  // namespace
}  // namespace paceline
