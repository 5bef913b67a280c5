// Backend nccl on device memory: results, the order of calls and of the device's other work, and
// what is refused. On the stand-ins for NVIDIA's libraries, or on GPUs.

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/nccl/device_buffers.h"
#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::Says;

constexpr std::size_t kCount = 100'003;
constexpr int kGpus = 3;

std::vector<std::byte> bytes_of_floats(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

class NcclDevice : public testing::Test {
 protected:
  void SetUp() override {
    use_standins();
    const std::string reason = why_no_gpus(kGpus);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static void run(const harness::RankBody& body, int ranks = kGpus) {
    harness::run_ranks_ok(ranks, body, {.backend = "nccl"});
  }
};

// Carries out a call on copies of the buffers in host memory, by the engine.
std::vector<std::byte> on_the_host(ProcessGroup& group, Call call,
                                   const std::vector<std::byte>& input, std::size_t output_bytes,
                                   Dtype dtype) {
  std::vector<std::byte> output(output_bytes);
  call.input = ConstBuffer(input.data(), input.size() / size_of(dtype), dtype);
  call.output = Buffer(output.data(), output_bytes / size_of(dtype), dtype);
  engine(group).run(call);
  return output;
}

TEST_F(NcclDevice, every_reduction_is_that_of_the_cpu) {
  run([](ProcessGroup& group) {
    int num_reductions = 0;
    const auto world = static_cast<std::size_t>(group.world_size());
    for (const Dtype dtype : kAllDtypes) {
      const auto mine = values_of(dtype, group.rank(), 999);
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
        const auto reduce_op = static_cast<ReduceOp>(op);
        if (!group.supports(Op::kAllReduce, dtype, reduce_op, Device::kCuda)) continue;
        // A mean of three ranks is rounded as NCCL likes.
        if (reduce_op == ReduceOp::kMean && uses_real_gpus()) continue;
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(reduce_op)));
        const OnDevice input(mine), all(mine.size()), part(mine.size() / world);
        group.all_reduce(all.buffer(dtype), input.buffer(dtype), reduce_op);
        EXPECT_EQ(all.read(), on_the_host(group, {.op = Op::kAllReduce, .reduce_op = reduce_op},
                                          mine, mine.size(), dtype));
        group.reduce_scatter(part.buffer(dtype), input.buffer(dtype), reduce_op);
        EXPECT_EQ(part.read(),
                  on_the_host(group, {.op = Op::kReduceScatter, .reduce_op = reduce_op}, mine,
                              mine.size() / world, dtype));
        group.reduce(input.buffer(dtype), 1, reduce_op);
        if (group.rank() == 1) {
          EXPECT_EQ(input.read(), all.read());
        }
        ++num_reductions;
      }
    }
    EXPECT_GT(num_reductions, 30);
  });
}

TEST_F(NcclDevice, data_that_is_moved_is_that_of_the_cpu) {
  run([](ProcessGroup& group) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt16, Dtype::kBool}) {
      const auto blocks = values_of(dtype, group.rank(), 3 * kCount);
      const auto block = values_of(dtype, group.rank(), kCount);
      const auto expect_same = [&](Op op, const std::vector<std::byte>& given, std::size_t taken,
                                   int root = 0) {
        SCOPED_TRACE(std::string(name_of(op)) + " of " + std::string(name_of(dtype)));
        const OnDevice input(given), output(taken);
        Call call{.op = op, .root = root};
        const auto expected = on_the_host(group, call, given, taken, dtype);
        call.input = input.buffer(dtype);
        call.output = output.buffer(dtype);
        engine(group).run(call);
        EXPECT_EQ(output.read(), expected);
      };
      expect_same(Op::kAllGather, block, blocks.size());
      expect_same(Op::kGather, block, blocks.size(), 2);
      expect_same(Op::kScatter, blocks, block.size(), 1);
      expect_same(Op::kAllToAll, blocks, blocks.size());
      OnDevice data(block);
      group.broadcast(data.buffer(dtype), 2);
      EXPECT_EQ(data.read(), values_of(dtype, 2, kCount));
    }
  });
}

TEST_F(NcclDevice, unequal_counts_are_those_of_the_cpu) {
  run([](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::vector<std::size_t> counts = {5, 0, 70'001};
    const std::size_t all = 70'006;
    const auto own = values_of(Dtype::kFloat32, group.rank(), counts[rank]);
    const auto whole = values_of(Dtype::kFloat32, group.rank(), all);
    const auto expect_same = [&](Call call, const std::vector<std::byte>& given,
                                 std::size_t taken) {
      SCOPED_TRACE(std::string(name_of(call.op)));
      const OnDevice input(given), output(taken);
      const auto expected = on_the_host(group, call, given, taken, Dtype::kFloat32);
      call.input = input.buffer(Dtype::kFloat32);
      call.output = output.buffer(Dtype::kFloat32);
      engine(group).run(call);
      EXPECT_EQ(output.read(), expected);
    };
    expect_same({.op = Op::kAllGatherV, .counts = counts}, own, all * 4);
    expect_same({.op = Op::kReduceScatterV, .counts = counts}, whole, own.size());
    std::vector<std::size_t> send, receive;
    std::size_t given = 0, taken = 0;
    for (std::size_t peer = 0; peer < counts.size(); ++peer) {
      send.push_back(1000 * rank + peer);
      receive.push_back(1000 * peer + rank);
      given += send.back();
      taken += receive.back();
    }
    expect_same({.op = Op::kAllToAllV, .counts = send, .receive_counts = receive},
                values_of(Dtype::kFloat32, group.rank(), given), taken * 4);
  });
}

TEST_F(NcclDevice, many_buffers_are_one_call) {
  run([](ProcessGroup& group) {
    const auto world = static_cast<std::size_t>(group.world_size());
    const std::vector<std::size_t> counts = {3, 60'000, 0, 17};
    std::vector<std::unique_ptr<OnDevice>> held;
    std::vector<Buffer> sums, gathered;
    std::vector<ConstBuffer> given;
    for (const std::size_t count : counts) {
      const auto make = [&](std::size_t elements) {
        held.push_back(
            std::make_unique<OnDevice>(values_of(Dtype::kFloat32, group.rank(), elements)));
        return held.back()->buffer(Dtype::kFloat32);
      };
      sums.push_back(make(count));
      given.push_back(make(count));
      gathered.push_back(make(count * world));
    }
    group.all_reduce_coalesced(sums);
    group.all_gather_coalesced(gathered, given);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(held[3 * i]->read(), bytes_of_floats(total<float>(group.world_size(), counts[i])));
      const auto all = held[3 * i + 2]->read();
      const auto last = values_of(Dtype::kFloat32, group.world_size() - 1, counts[i]);
      EXPECT_TRUE(std::equal(last.begin(), last.end(), all.end() - std::ssize(last)));
    }
  });
}

// The streams of all ranks are held: no operation can finish, and yet all of them are called.
TEST_F(NcclDevice, calls_are_queued_on_the_device_without_waiting_for_it) {
  constexpr int kCalls = 8;
  std::atomic<int> num_queued = 0;
  run([&](ProcessGroup& group) {
    const TestStream stream;
    HeldStream held(stream.get());
    const OnDevice data(values_of(Dtype::kFloat32, 0, kCount));
    const Buffer buffer = data.buffer(Dtype::kFloat32);
    std::vector<WorkPtr> works;
    for (int call = 0; call < kCalls; ++call) {
      works.push_back(queue_all_reduce(group, buffer, ReduceOp::kMax, {.order = stream.order()}));
    }
    int in_flight = 0;
    for (const WorkPtr& work : works) {
      work->wait();
      in_flight += work->is_completed() ? 0 : 1;
    }
    EXPECT_EQ(in_flight, kCalls) << "the device has not begun any";
    RecordProperty("collectives_in_flight", in_flight);
    ++num_queued;
    ASSERT_TRUE(harness::wait_until([&] { return num_queued == group.world_size(); },
                                    Deadline::after(20s)));
    held.release();
    ASSERT_TRUE(
        harness::wait_until([&] { return works.back()->is_completed(); }, Deadline::after(20s)));
    for (const WorkPtr& work : works) EXPECT_TRUE(work->is_completed());
    EXPECT_EQ(data.read(), values_of(Dtype::kFloat32, 0, kCount));
  });
}

TEST_F(NcclDevice, a_call_reads_what_the_stream_wrote_before_and_the_stream_sees_its_result) {
  run([](ProcessGroup& group) {
    const CudaApi& api = CudaApi::load();
    const TestStream stream;
    const OnDevice source(values_of(Dtype::kFloat32, group.rank(), kCount));
    const OnDevice data(kCount * 4), copy(kCount * 4);
    const auto copy_on_stream = [&](const OnDevice& from, const OnDevice& to) {
      api.cudaMemcpyAsync(to.buffer(Dtype::kUint8).data, from.buffer(Dtype::kUint8).data,
                          kCount * 4, 3, stream.get());
    };
    for (int round = 0; round < 5; ++round) {
      HeldStream late(stream.get());
      copy_on_stream(source, data);
      const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                         {.order = stream.order()});
      work->wait();
      copy_on_stream(data, copy);
      late.release();
      stream.synchronize();
      EXPECT_EQ(copy.read(), bytes_of_floats(total<float>(group.world_size(), kCount)));
    }
  });
}

TEST_F(NcclDevice, objects_of_a_call_live_until_the_device_has_finished_it) {
  std::atomic<int> num_seen = 0;
  run([&](ProcessGroup& group) {
    const TestStream stream;
    HeldStream held(stream.get());
    const OnDevice data(kCount * 4);
    auto object = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = object;
    const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                       {.keep_alive = std::move(object), .order = stream.order()});
    work->wait();
    EXPECT_FALSE(watched.expired());
    ++num_seen;
    ASSERT_TRUE(
        harness::wait_until([&] { return num_seen == group.world_size(); }, Deadline::after(20s)));
    held.release();
    ASSERT_TRUE(harness::wait_until([&] { return work->is_completed(); }, Deadline::after(20s)));
    EXPECT_TRUE(watched.expired());
  });
}

// The last owner of the group is the call itself: the group is destroyed on the thread that watches
// the device.
TEST_F(NcclDevice, a_group_may_end_with_its_last_call) {
  run([](ProcessGroup& group) {
    const TestStream stream;
    const OnDevice data(kCount * 4);
    std::shared_ptr<ProcessGroup> child = group.new_group({0, 1, 2});
    auto* const raw = child.get();
    const WorkPtr work =
        queue_all_reduce(*raw, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                         {.keep_alive = std::move(child), .order = stream.order()});
    work->wait();
    ASSERT_TRUE(harness::wait_until([&] { return work->is_completed(); }, Deadline::after(20s)));
    group.barrier();
  });
}

TEST_F(NcclDevice, queued_operations_end_before_their_group) {
  run([](ProcessGroup& group) {
    const TestStream stream;
    HeldStream held(stream.get());
    const OnDevice data(values_of(Dtype::kFloat32, group.rank(), kCount));
    std::shared_ptr<ProcessGroup> child = group.new_group({0, 1, 2});
    const WorkPtr work = queue_all_reduce(*child, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                          {.order = stream.order()});
    work->wait();
    const std::jthread releases([&] {
      std::this_thread::sleep_for(100ms);
      held.release();
    });
    child.reset();
    ASSERT_TRUE(work->is_completed());
    work->on_complete([](const Error* error) { EXPECT_EQ(error, nullptr) << error->what(); });
    stream.synchronize();
    EXPECT_EQ(data.read(), bytes_of_floats(total<float>(group.world_size(), kCount)));
    group.barrier();
  });
}

TEST_F(NcclDevice, a_call_works_on_the_groups_gpu_and_leaves_the_threads_choice_as_it_is) {
  run([](ProcessGroup& group) {
    const OnDevice data(values_of(Dtype::kFloat32, group.rank(), kCount));
    const int other = (group.rank() + 1) % kGpus;
    {
      const CudaDeviceGuard guard(CudaApi::load(), other, "");
      group.all_reduce(data.buffer(Dtype::kFloat32));
      int current = -1;
      CudaApi::load().cudaGetDevice(&current);
      EXPECT_EQ(current, other);
    }
    EXPECT_EQ(data.read(), bytes_of_floats(total<float>(group.world_size(), kCount)));
  });
}

// A context on another rank's GPU takes some hundred MB there.
TEST_F(NcclDevice, no_thread_of_a_group_uses_another_gpu) {
  if (uses_real_gpus()) GTEST_SKIP() << "the stand-in counts the uses of each GPU";
  auto* const num_uses = device_function<std::uint64_t(int)>("standin_cuda_touches");
  const std::uint64_t before = num_uses(0);
  harness::run_ranks_ok(
      2,
      [](ProcessGroup& group) {
        const TestStream stream;
        HeldStream held(stream.get());
        const OnDevice data(kCount * 4);
        const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                           {.order = stream.order()});
        work->wait();
        std::this_thread::sleep_for(20ms);  // the group's thread polls the operation
        held.release();
        EXPECT_TRUE(
            harness::wait_until([&] { return work->is_completed(); }, Deadline::after(20s)));
        group.all_reduce(data.buffer(Dtype::kFloat32));
      },
      {.backend = "nccl", .adjust = [](int rank, GroupOptions& /*options*/) {
         CudaApi::load().cudaSetDevice(rank + 1);
       }});
  EXPECT_EQ(num_uses(0), before) << "GPU 0 belongs to no rank";
}

TEST_F(NcclDevice, a_call_of_another_thread_does_not_end_a_capture) {
  if (uses_real_gpus()) GTEST_SKIP() << "the capture is one of the stand-in";
  run(
      [](ProcessGroup& group) {
        const OnDevice data(values_of(Dtype::kFloat32, 0, kCount));
        const TestStream captured;
        auto* const begin = device_function<int(CudaStream, int)>("cudaStreamBeginCapture");
        auto* const end = device_function<int(CudaStream, void**)>("cudaStreamEndCapture");
        ASSERT_EQ(begin(captured.get(), 0), 0);
        std::thread([&] { group.all_reduce(data.buffer(Dtype::kFloat32)); }).join();
        void* graph = nullptr;
        EXPECT_EQ(end(captured.get(), &graph), 0) << "the call has ended the capture";
      },
      1);
}

TEST_F(NcclDevice, a_captured_call_is_not_watched_and_runs_with_the_graph) {
  if (uses_real_gpus()) GTEST_SKIP() << "the capture is one of the stand-in";
  run(
      [](ProcessGroup& group) {
        const TestStream stream;
        const OnDevice data(values_of(Dtype::kFloat32, 0, kCount)), other(kCount * 4);
        // Watched while the capture goes on.
        HeldStream held(stream.get());
        const auto before = queue_all_reduce(group, other.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                             {.order = stream.order()});
        before->wait();
        const TestStream captured;
        auto* const begin = device_function<int(CudaStream, int)>("cudaStreamBeginCapture");
        auto* const end = device_function<int(CudaStream, void**)>("cudaStreamEndCapture");
        auto* const launch = device_function<int(void*, CudaStream)>("cudaGraphLaunch");
        ASSERT_EQ(begin(captured.get(), 0), 0);
        const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kSum,
                                           {.order = captured.order()});
        work->wait();
        std::this_thread::sleep_for(20ms);  // the watch polls the call before
        void* graph = nullptr;
        ASSERT_EQ(end(captured.get(), &graph), 0);
        EXPECT_TRUE(work->is_completed());
        held.release();
        ASSERT_TRUE(
            harness::wait_until([&] { return before->is_completed(); }, Deadline::after(20s)));
        ASSERT_EQ(launch(graph, captured.get()), 0);
        ASSERT_EQ(launch(graph, captured.get()), 0);
        captured.synchronize();
        EXPECT_EQ(data.read(), values_of(Dtype::kFloat32, 0, kCount)) << "a sum of one rank";
      },
      1);
}

TEST_F(NcclDevice, calls_that_differ_are_named_before_nccl_sees_them) {
  const auto results = harness::run_ranks(
      2,
      [](ProcessGroup& group) {
        const OnDevice data(400);
        const Buffer all = data.buffer(Dtype::kFloat32);
        group.all_reduce(Buffer(all.data, group.rank() == 0 ? 100 : 99, all.dtype, all.device));
      },
      {.backend = "nccl"});
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid);
    EXPECT_THAT(result.error->what(), testing::HasSubstr("float32 x 99"));
  }
}

TEST_F(NcclDevice, memory_of_the_host_or_of_another_gpu_is_refused) {
  run([](ProcessGroup& group) {
    std::vector<float> data(10, 1.0f);
    const auto child = group.new_group({0, 1, 2});
    try {
      child->all_reduce(Buffer(data.data(), data.size(), Dtype::kFloat32, Device::kCuda));
      ADD_FAILURE() << "memory of the host was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), Says("library.not_on_device"));
    }
    std::unique_ptr<OnDevice> elsewhere;
    {
      const CudaDeviceGuard guard(CudaApi::load(), (group.rank() + 1) % 3, "");
      elsewhere = std::make_unique<OnDevice>(40);
    }
    expect_error(ErrorCode::kInvalid, {"a buffer is on GPU", "works on GPU"},
                 [&] { group.all_reduce(elsewhere->buffer(Dtype::kFloat32)); });
  });
}

TEST_F(NcclDevice, a_buffer_of_another_gpu_on_one_rank_is_an_error_on_every_rank) {
  const auto begun = std::chrono::steady_clock::now();
  const auto results = harness::run_ranks(
      kGpus,
      [](ProcessGroup& group) {
        const CudaDeviceGuard guard(CudaApi::load(), group.rank() == 1 ? 0 : group.rank(), "");
        const OnDevice data(40);
        engine(group).run({.op = Op::kAllReduce,
                           .input = data.buffer(Dtype::kFloat32),
                           .output = data.buffer(Dtype::kFloat32)},
                          {.timeout = 2s});
      },
      {.backend = "nccl"});
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].error) << "rank " << rank;
    EXPECT_THAT(results[rank].error->what(),
                testing::HasSubstr(rank == 1 ? "choose the rank's GPU (cudaSetDevice)" : "rank 1"));
  }
}

}  // namespace
}  // namespace paceline
