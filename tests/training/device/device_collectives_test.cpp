// Collectives and messages of CUDA tensors in a group without a CUDA backend.

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_call.h"
#include "paceline/training/tensor/tensor_view.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/wait_until.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Returns `count` numbers from a value that depends on the rank.
at::Tensor numbers(const ProcessGroup& group, std::int64_t count = 1000) {
  return torch::arange(count, at::kFloat) + static_cast<float>(100 * group.rank());
}

TEST(DeviceCollectives, give_the_results_of_the_cpu) {
  run_on_devices(3, [](ProcessGroup& group, c10::Device device) {
    const auto both = [&](const auto& call) {
      const at::Tensor host = numbers(group, 999), on_device = host.to(device);
      const at::Tensor expected = call(host);
      const at::Tensor found = call(on_device);
      EXPECT_EQ(found.device(), device);
      EXPECT_TRUE(torch::equal(found.cpu(), expected));
    };
    both([&](const at::Tensor& t) { return all_reduce(group, t), t; });
    both([&](const at::Tensor& t) { return broadcast(group, t, 1), t; });
    both([&](const at::Tensor& t) { return reduce(group, t, 2), t; });
    both([&](const at::Tensor& t) { return all_gather_into_tensor(group, t); });
    both([&](const at::Tensor& t) { return reduce_scatter(group, t); });
    both([&](const at::Tensor& t) { return all_to_all_single(group, t); });
    both([&](const at::Tensor& t) {
      return all_gather_v(group, t.narrow(0, 0, group.rank() + 1), {1, 2, 3});
    });
    both([&](const at::Tensor& t) { return reduce_scatter_v(group, t, {9, 90, 900}); });
    both([&](const at::Tensor& t) {
      const at::Tensor other = t * 2;
      all_reduce_coalesced(group, {t, other});
      broadcast_coalesced(group, {other}, 1);
      return t + other;
    });
    both([&](const at::Tensor& t) {  // not dense
      const at::Tensor column = t.view({3, 333}).select(1, 5);
      all_reduce(group, column, ReduceOp::kMax);
      return t;
    });
    both([&](const at::Tensor& t) {
      const auto parts = gather(group, t, 1).size();
      EXPECT_EQ(parts, group.rank() == 1 ? 3U : 0U);
      const at::Tensor mine = torch::zeros_like(t);
      scatter(group, mine,
              group.rank() == 0 ? std::vector{t, t * 2, t * 3} : std::vector<at::Tensor>(), 0);
      return mine;
    });
  });
}

TEST(DeviceCollectives, are_ordered_with_the_work_of_the_callers_stream) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    for (int round = 0; round < 20; ++round) {
      const at::Tensor sum = torch::full({2000}, static_cast<float>(round), device);
      sum.mul_(2).add_(1);  // still under way when the call is made
      const WorkPtr work = all_reduce(group, sum, ReduceOp::kSum, {.async_op = true});
      const at::Tensor other = torch::ones({2000}, device).mul_(3);
      work->wait();
      const at::Tensor result = sum * 1 + other;
      EXPECT_TRUE(torch::equal(result.cpu(), torch::full({2000}, 2.0F * (2.0F * round + 1) + 3)));
    }
  });
}

// Nothing of a call may be queued on the default stream, which the program does not use here.
TEST(DeviceCollectives, follow_a_stream_of_the_program_and_no_other) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const HeldStream others(current_stream_of(device));
    const c10::StreamGuard guard(own_stream(device));
    const at::Tensor values = torch::ones({1000}, device).mul_(group.rank() + 1);
    all_reduce(group, values, ReduceOp::kSum, {.timeout = 10s});
    EXPECT_EQ((values * 1).sum().item<float>(), 3000);
  });
}

TEST(DeviceCollectives, end_when_the_device_has_their_results) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const at::Tensor values = torch::ones({1000}, device);
    all_reduce(group, values);
    group.barrier();
    HeldStream held(side_stream(device, SideStream::kToDevice));
    auto object = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = object;
    const WorkPtr work =
        all_reduce(group, values, ReduceOp::kSum,
                   {.timeout = 10s, .async_op = true, .keep_alive = std::move(object)});
    work->wait();  // the host goes on, and the stream waits
    std::this_thread::sleep_for(30ms);
    EXPECT_FALSE(work->is_completed()) << "the device has not begun to copy the result";
    EXPECT_FALSE(watched.expired());
    held.release();
    EXPECT_TRUE(harness::wait_until([&] { return work->is_completed(); }, Deadline::after(10s)));
    EXPECT_EQ((values * 1).sum().item<float>(), 4000);
  });
}

TEST(DeviceCollectives, let_the_host_go_on) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const at::Tensor values = torch::ones({1000}, device);
    all_reduce(group, values);
    group.barrier();
    simulated::reset_counts();
    group.barrier();
    for (int i = 0; i < 5; ++i) {
      const WorkPtr work = all_reduce(group, values, ReduceOp::kSum, {.async_op = true});
      work->wait();
    }
    group.barrier();
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
  });
}

TEST(DeviceMessages, arrive_as_on_the_cpu) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const int peer = 1 - group.rank();
    for (int round = 0; round < 10; ++round) {
      const at::Tensor mine = torch::full({500}, 1.0F, device).mul_(group.rank() + round);
      const at::Tensor theirs = torch::full({500}, -1.0F, device);
      if (round % 2 == 0) {
        const auto receive = irecv(group, theirs, peer);
        send(group, mine, peer);
        receive->wait();
        EXPECT_EQ(receive->source_rank(), peer);
      } else {
        for (const auto& work :
             batch_isend_irecv(group, {{Op::kSend, mine, peer}, {Op::kReceive, theirs, peer}}))
          work->wait();
      }
      const at::Tensor doubled = theirs * 2;
      EXPECT_TRUE(torch::equal(doubled.cpu(), torch::full({500}, 2.0F * (peer + round))));
    }
    if (group.rank() == 0) {
      send(group, torch::ones({3}, device), peer, 7);
    } else {
      const at::Tensor values = torch::zeros({3}, device);
      EXPECT_EQ(recv(group, values, kAnySource, 7), 0);
      EXPECT_EQ(values.sum().item<float>(), 3);
    }
  });
}

TEST(DeviceMessages, have_the_values_of_the_stream_and_live_until_they_have_been_sent) {
  constexpr std::int64_t kMany = 1 << 20;  // so many that the receiver reads them in place
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    if (group.rank() == 0) {
      simulated::Stream::of(device.index(), 0).push([] { std::this_thread::sleep_for(30ms); });
      isend(group, torch::full({kMany}, 3.0F, device), 1);  // drops the Work and the tensor
      group.barrier();
    } else {
      group.barrier();
      const at::Tensor values = torch::zeros({kMany}, device);
      recv(group, values, 0);
      EXPECT_TRUE(torch::equal(values.cpu(), torch::full({kMany}, 3.0F)));
    }
    group.barrier();
  });
}

// The program drops everything before the device has copied the message: the memory must not be
// given to another tensor, which the copy would overwrite.
TEST(DeviceMessages, keep_the_memory_of_a_dropped_receive_until_its_copy_has_ended) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    if (group.rank() == 0) {
      send(group, torch::ones({500}, device), 1);
    } else {
      const c10::Stream copies = side_stream(device, SideStream::kToDevice);
      HeldStream held(copies);
      const void* place = nullptr;
      {
        const at::Tensor values = torch::zeros({500}, device);
        place = values.data_ptr();
        const WorkPtr work = irecv(group, values, 0);
        ASSERT_TRUE(
            harness::wait_until([&] { return work->is_completed(); }, Deadline::after(10s)));
      }
      const at::Tensor other = torch::zeros({500}, device);
      EXPECT_NE(other.data_ptr(), place);
      held.release();
      simulated::Stream::of(device.index(), copies.id()).drain();
      EXPECT_EQ(other.sum().item<float>(), 0);
    }
    group.barrier();
  });
}

TEST(DeviceCollectives, leave_no_memory_behind) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const std::size_t before = simulated::live_bytes(device.index());
    for (int i = 0; i < 3; ++i) all_reduce(group, torch::ones({1000}, device));
    group.barrier();
    EXPECT_EQ(simulated::live_bytes(device.index()), before);
  });
}

TEST(DeviceCollectives, on_several_devices_are_refused) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const at::Tensor host = torch::zeros({4}), on_device = torch::zeros({4}, device);
    const at::Tensor elsewhere = torch::zeros({4}, c10::Device(c10::kCUDA, 3));
    expect_error(ErrorCode::kInvalid, {"all_reduce", "one call; move them to one device"}, [&] {
      all_reduce_coalesced(group, {on_device, elsewhere});
    });
    expect_error(ErrorCode::kInvalid, {"scatter", "a tensor on cpu and one on cuda"},
                 [&] { start(group, {.op = Op::kScatter, .input = host, .output = on_device}); });
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "as good as before";
  });
}

TEST(DeviceCollectives, name_a_device_that_hangs) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const at::Tensor values = torch::ones({10}, device);
    std::optional<HeldStream> held;
    if (group.rank() == 1) held.emplace(current_stream_of(device));
    const CollectiveOptions soon{.timeout = 300ms};
    if (group.rank() == 1) {
      expect_error(ErrorCode::kTimeout, {"rank 1: all_reduce: cuda:2 has not finished its work"},
                   [&] { all_reduce(group, values, ReduceOp::kSum, soon); });
    } else {
      EXPECT_THROW(all_reduce(group, values, ReduceOp::kSum), Error);
    }
  });
}

}  // namespace
}  // namespace paceline
