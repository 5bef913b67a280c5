// Messages in device memory over backend nccl: values, order, and what does not wait for what. On
// the stand-ins for NVIDIA's libraries, or on GPUs.

#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/nccl/device_buffers.h"
#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kElements = 100'003;
constexpr int kRanksOfMessages = 3;

class NcclMessage : public testing::Test {
 protected:
  void SetUp() override {
    use_standins();
    const std::string reason = why_no_gpus(kRanksOfMessages);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static void run(const harness::RankBody& body, int ranks = kRanksOfMessages) {
    harness::run_ranks_ok(ranks, body, {.backend = "nccl"});
  }
};

Call sending(Buffer buffer, int peer, std::uint32_t tag = 0) {
  return {.op = Op::kSend, .input = buffer, .peer = peer, .tag = tag};
}
Call receiving(Buffer buffer, int peer, std::uint32_t tag = 0) {
  return {.op = Op::kReceive, .output = buffer, .peer = peer, .tag = tag};
}

std::vector<std::byte> floats_of(int rank, std::size_t count = kElements) {
  return values_of(Dtype::kFloat32, rank, count);
}

TEST_F(NcclMessage, arrives_with_its_values_for_every_type) {
  run([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    for (const Dtype dtype : kAllDtypes) {
      SCOPED_TRACE(std::string(name_of(dtype)));
      const OnDevice mine(values_of(dtype, group.rank(), kElements));
      const OnDevice theirs(kElements * size_of(dtype));
      const auto receive = engine(group).start(receiving(theirs.buffer(dtype), previous));
      engine(group).run(sending(mine.buffer(dtype), next));
      receive->wait();
      EXPECT_EQ(receive->source_rank(), previous);
      EXPECT_EQ(theirs.read(), values_of(dtype, previous, kElements));
    }
  });
}

TEST_F(NcclMessage, batches_go_both_ways_in_any_order_of_their_messages) {
  run([](ProcessGroup& group) {
    const OnDevice mine(floats_of(group.rank()));
    std::vector<std::unique_ptr<OnDevice>> theirs;
    for (int i = 0; i < 3; ++i) theirs.push_back(std::make_unique<OnDevice>(kElements * 4));
    const TestStream stream;
    for (int round = 0; round < 5; ++round) {
      std::vector<Call> messages;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == group.rank()) continue;
        const Buffer to = theirs[static_cast<std::size_t>(peer)]->buffer(Dtype::kFloat32);
        messages.push_back(sending(mine.buffer(Dtype::kFloat32), peer, 7));
        messages.push_back(receiving(to, peer, 7));
      }
      if (round % 2 == 1) std::reverse(messages.begin(), messages.end());
      for (const auto& work : engine(group).batch_isend_irecv(messages, {.order = stream.order()}))
        work->wait();
    }
    stream.synchronize();
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == group.rank()) continue;
      EXPECT_EQ(theirs[static_cast<std::size_t>(peer)]->read(), floats_of(peer));
    }
  });
}

// Both ranks start to send at first, and then receive.
TEST_F(NcclMessage, sends_of_two_ranks_do_not_wait_for_each_other) {
  run(
      [](ProcessGroup& group) {
        const int peer = 1 - group.rank();
        const OnDevice mine(floats_of(group.rank())), theirs(kElements * 4);
        const TestStream stream;
        for (int round = 0; round < 3; ++round) {
          const auto send = engine(group).start(sending(mine.buffer(Dtype::kFloat32), peer),
                                                {.order = stream.order()});
          engine(group).run(receiving(theirs.buffer(Dtype::kFloat32), peer),
                            {.order = stream.order()});
          send->wait();
          stream.synchronize();
          EXPECT_EQ(theirs.read(), floats_of(peer));
        }
      },
      2);
}

TEST_F(NcclMessage, is_queued_without_waiting_for_the_device) {
  std::atomic<int> num_queued = 0;
  run(
      [&](ProcessGroup& group) {
        constexpr int kMessages = 8;
        const TestStream stream;
        HeldStream held(stream.get());
        const OnDevice data(floats_of(0));
        std::vector<WorkPtr> works;
        for (int i = 0; i < kMessages; ++i) {
          const Buffer buffer = data.buffer(Dtype::kFloat32);
          works.push_back(
              engine(group).start(group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
                                  {.order = stream.order()}));
        }
        for (const WorkPtr& work : works) {
          work->wait();
          EXPECT_FALSE(work->is_completed()) << "the device has not begun it";
        }
        ++num_queued;
        ASSERT_TRUE(harness::wait_until([&] { return num_queued == 2; }, Deadline::after(20s)));
        held.release();
        for (const WorkPtr& work : works) {
          EXPECT_TRUE(
              harness::wait_until([&] { return work->is_completed(); }, Deadline::after(20s)));
        }
        EXPECT_EQ(data.read(), floats_of(0));
      },
      2);
}

TEST_F(NcclMessage, follows_its_stream_and_the_stream_follows_it) {
  run(
      [](ProcessGroup& group) {
        const CudaApi& api = CudaApi::load();
        const TestStream stream;
        const OnDevice source(floats_of(group.rank())), data(kElements * 4), copy(kElements * 4);
        const auto copy_on_stream = [&](const OnDevice& from, const OnDevice& to) {
          api.cudaMemcpyAsync(to.buffer(Dtype::kUint8).data, from.buffer(Dtype::kUint8).data,
                              kElements * 4, 3, stream.get());
        };
        for (int round = 0; round < 5; ++round) {
          HeldStream late(stream.get());
          const Buffer buffer = data.buffer(Dtype::kFloat32);
          if (group.rank() == 0) copy_on_stream(source, data);
          engine(group).run(group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
                            {.order = stream.order()});
          copy_on_stream(group.rank() == 0 ? copy : data, group.rank() == 0 ? data : copy);
          late.release();
          stream.synchronize();
          if (group.rank() == 1) {
            EXPECT_EQ(copy.read(), floats_of(0)) << "round " << round;
          }
        }
      },
      2);
}

TEST_F(NcclMessage, is_found_by_tag_and_from_any_rank_if_the_receives_are_started_together) {
  run(
      [](ProcessGroup& group) {
        const OnDevice one(floats_of(1)), two(floats_of(2)), none(floats_of(0, 1));
        if (group.rank() == 0) {
          engine(group).start(sending(one.buffer(Dtype::kFloat32), 1, 1));
          engine(group).run(sending(two.buffer(Dtype::kFloat32), 1, 2));
          engine(group).run(sending(Buffer(nullptr, 0, Dtype::kInt16, Device::kCuda), 1, 3));
          group.barrier();
          return;
        }
        const OnDevice first(kElements * 4), second(kElements * 4);
        const auto later = engine(group).start(receiving(second.buffer(Dtype::kFloat32), 0, 2));
        const auto sooner =
            engine(group).start(receiving(first.buffer(Dtype::kFloat32), kAnySource, 1));
        later->wait();
        sooner->wait();
        EXPECT_EQ(sooner->source_rank(), 0);
        EXPECT_EQ(first.read(), floats_of(1));
        EXPECT_EQ(second.read(), floats_of(2));
        EXPECT_EQ(engine(group).recv(
                      receiving(Buffer(nullptr, 0, Dtype::kInt16, Device::kCuda), kAnySource, 3)),
                  0);
        group.barrier();
      },
      2);
}

TEST_F(NcclMessage, and_collectives_and_messages_of_the_host_go_on_at_the_same_time) {
  run([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    const OnDevice mine(floats_of(group.rank())), theirs(kElements * 4), sum(kElements * 4);
    const TestStream stream;
    for (int round = 0; round < 5; ++round) {
      std::vector<float> word{static_cast<float>(round)}, got(1);
      const auto receive = engine(group).start(receiving(theirs.buffer(Dtype::kFloat32), previous),
                                               {.order = stream.order()});
      const auto reduced = queue_all_reduce(group, sum.buffer(Dtype::kFloat32), ReduceOp::kMax,
                                            {.order = stream.order()});
      const auto send = engine(group).start(sending(mine.buffer(Dtype::kFloat32), next),
                                            {.order = stream.order()});
      const auto host = group.irecv(std::span(got), previous, 5);
      group.send(std::span(word), next, 5);
      for (const auto& work : {receive, reduced, send, host}) work->wait();
      stream.synchronize();
      EXPECT_EQ(got, word);
      EXPECT_EQ(theirs.read(), floats_of(previous));
    }
  });
}

TEST_F(NcclMessage, keeps_its_objects_until_the_device_has_finished_it) {
  run(
      [](ProcessGroup& group) {
        const TestStream stream;
        HeldStream held(stream.get());
        const OnDevice data(kElements * 4);
        auto object = std::make_shared<int>(1);
        const std::weak_ptr<int> watched = object;
        const Buffer buffer = data.buffer(Dtype::kFloat32);
        const auto work =
            engine(group).start(group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
                                {.keep_alive = std::move(object), .order = stream.order()});
        work->wait();
        EXPECT_FALSE(watched.expired());
        group.barrier();
        held.release();
        ASSERT_TRUE(
            harness::wait_until([&] { return work->is_completed(); }, Deadline::after(20s)));
        EXPECT_TRUE(watched.expired());
      },
      2);
}

TEST_F(NcclMessage, makes_the_host_wait_if_the_group_is_told_to) {
  harness::run_ranks_ok(2,
                        [](ProcessGroup& group) {
                          const TestStream stream;
                          const OnDevice data(floats_of(0));
                          const Buffer buffer = data.buffer(Dtype::kFloat32);
                          const auto work = engine(group).start(
                              group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
                              {.order = stream.order()});
                          work->wait();
                          EXPECT_TRUE(work->is_completed());
                        },
                        {.backend = "nccl", .adjust = [](int /*rank*/, GroupOptions& options) {
                           options.blocking_wait = true;
                         }});
}

// ---- what is refused

TEST_F(NcclMessage, that_differs_from_its_receive_is_an_error_of_both_ranks) {
  const auto send_and_receive = [](Call send, Call receive) {
    return harness::run_ranks(2,
                              [&](ProcessGroup& group) {
                                const OnDevice data(400);
                                std::vector<std::byte> host(400);
                                Call call = group.rank() == 0 ? send : receive;
                                const auto fill = [&](auto& buffer) {
                                  buffer.data = buffer.device == Device::kCpu
                                                    ? host.data()
                                                    : data.buffer(Dtype::kUint8).data;
                                };
                                group.rank() == 0 ? fill(call.input) : fill(call.output);
                                engine(group).run(call, {.timeout = 5s});
                                group.barrier();
                              },
                              {.backend = "cpu:paceline,cuda:nccl"});
  };
  const auto floats = [](std::size_t count, Device device) {
    return Buffer(nullptr, count, Dtype::kFloat32, device);
  };
  for (const auto& result : send_and_receive(sending(floats(100, Device::kCuda), 1),
                                             receiving(floats(99, Device::kCuda), 0))) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), AllOf(HasSubstr("float32 x 99 in CUDA memory from rank 0"),
                                            HasSubstr("sent float32 x 100")));
  }
  for (const auto& result : send_and_receive(sending(floats(100, Device::kCpu), 1),
                                             receiving(floats(100, Device::kCuda), 0))) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr("sent float32 x 100 in host memory"));
  }
}

TEST_F(NcclMessage, of_the_host_of_another_gpu_or_with_its_shape_is_refused) {
  run([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3;
    std::vector<float> host(10);
    expect_error(ErrorCode::kInvalid, {"send: a buffer is declared to be in CUDA memory"}, [&] {
      engine(group).run(sending(Buffer(host.data(), 10, Dtype::kFloat32, Device::kCuda), next));
    });
    const OnDevice data(40);
    const std::vector<std::int64_t> sizes{10};
    Call shaped = sending(data.buffer(Dtype::kFloat32), next);
    shaped.sizes = sizes;
    expect_error(ErrorCode::kUnsupported, {"cannot travel with its shape"},
                 [&] { engine(group).run(shaped); });
    std::unique_ptr<OnDevice> elsewhere;
    {
      const CudaDeviceGuard guard(CudaApi::load(), next, "");
      elsewhere = std::make_unique<OnDevice>(40);
    }
    expect_error(ErrorCode::kInvalid, {"recv: a buffer is on GPU", "works on GPU"},
                 [&] { engine(group).run(receiving(elsewhere->buffer(Dtype::kFloat32), next)); });
  });
}

TEST_F(NcclMessage, in_a_group_without_a_backend_for_the_device_is_refused) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    const OnDevice data(40);
    expect_error(ErrorCode::kUnsupported,
                 {"no backend for messages in CUDA memory", "cpu:paceline,cuda:nccl"}, [&] {
                   engine(group).run(sending(data.buffer(Dtype::kFloat32), 1 - group.rank()));
                 });
  });
}

// The stand-in has one capture at a time, so one rank captures. The other rank may have queued its
// end of the message before, and then its call returns.
TEST_F(NcclMessage, during_the_capture_of_a_graph_is_refused) {
  if (uses_real_gpus()) GTEST_SKIP() << "the capture is one of the stand-in";
  auto* const begin = device_function<int(CudaStream, int)>("cudaStreamBeginCapture");
  auto* const end = device_function<int(CudaStream, void**)>("cudaStreamEndCapture");
  for (const int captures : {0, 1}) {
    const auto results = harness::run_ranks(
        2,
        [&](ProcessGroup& group) {
          const TestStream stream;
          const OnDevice data(kElements * 4);
          group.barrier();  // an allocation would end the capture of the other rank
          if (group.rank() == captures) {
            ASSERT_EQ(begin(stream.get(), cuda::kCaptureOfOwnThread), 0);
          }
          const Buffer buffer = data.buffer(Dtype::kFloat32);
          engine(group).run(group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
                            {.order = stream.order()});
        },
        {.backend = "nccl"});
    void* graph = nullptr;
    end(nullptr, &graph);
    const auto& error = results[static_cast<std::size_t>(captures)].error;
    ASSERT_TRUE(error) << captures;
    EXPECT_THAT(error->what(), HasSubstr("only collectives can be captured"));
  }
}

// ---- what ends without the other rank

TEST_F(NcclMessage, that_nobody_receives_or_sends_is_a_timeout_of_both_ranks) {
  for (const bool sends : {true, false}) {
    const auto results = harness::run_ranks(
        2,
        [&](ProcessGroup& group) {
          const OnDevice data(kElements * 4);
          const Buffer buffer = data.buffer(Dtype::kFloat32);
          if (group.rank() == 0) {
            engine(group).run(sends ? sending(buffer, 1, 4) : receiving(buffer, 1, 4),
                              {.timeout = 500ms});
          } else {
            group.barrier();
          }
        },
        {.backend = "nccl"});
    for (const auto& result : results) {
      ASSERT_TRUE(result.error) << sends;
      EXPECT_THAT(result.error->what(),
                  HasSubstr(sends ? "does not receive it" : "no message arrived from rank 1"));
    }
  }
}

TEST_F(NcclMessage, that_the_device_of_the_receiver_never_reaches_is_a_timeout) {
  const auto results = harness::run_ranks(
      2,
      [&](ProcessGroup& group) {
        const OnDevice data(kElements * 4);
        const Buffer buffer = data.buffer(Dtype::kFloat32);
        const TestStream stream;
        const auto held = group.rank() == 1 ? std::make_unique<HeldStream>(stream.get()) : nullptr;
        const auto work = engine(group).start(
            group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0),
            {.timeout = group.rank() == 0 ? 500ms : 20s, .order = stream.order()});
        work->wait();
        ASSERT_TRUE(
            harness::wait_until([&] { return work->is_completed(); }, Deadline::after(15s)));
        work->wait();
      },
      {.backend = "nccl"});
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), HasSubstr("has not received it"));
  }
}

TEST_F(NcclMessage, that_is_received_before_an_earlier_one_is_a_timeout_that_tells_the_order) {
  const auto results =
      harness::run_ranks(2,
                         [&](ProcessGroup& group) {
                           const OnDevice data(kElements * 4);
                           const Buffer buffer = data.buffer(Dtype::kFloat32);
                           if (group.rank() == 0) {
                             engine(group).start(sending(buffer, 1, 1));
                             engine(group).start(sending(buffer, 1, 2));
                             group.barrier();
                           } else {
                             engine(group).run(receiving(buffer, 0, 2), {.timeout = 500ms});
                           }
                         },
                         {.backend = "nccl"});
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(), AllOf(HasSubstr("has not posted a receive for message 1"),
                                            HasSubstr("before message 2")));
  }
}

TEST_F(NcclMessage, of_a_group_that_ends_is_aborted) {
  run([](ProcessGroup& group) {
    std::shared_ptr<ProcessGroup> child = group.new_group({0, 1, 2});
    const OnDevice data(kElements * 4);
    const Buffer buffer = data.buffer(Dtype::kFloat32);
    const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    const TestStream stream;
    const auto receive =
        engine(*child).start(receiving(buffer, previous, 1), {.order = stream.order()});
    const auto send = engine(*child).start(sending(buffer, next, 2), {.order = stream.order()});
    group.barrier();
    child.reset();
    for (const WorkPtr& work : {receive, send}) {
      ASSERT_TRUE(work->is_completed());
      EXPECT_THROW(work->wait(), Error);
    }
    group.barrier();
  });
}

// The second message is queued on the sender's device when the receiver leaves.
TEST_F(NcclMessage, to_a_rank_that_leaves_does_not_hold_up_the_end_of_a_group) {
  run(
      [](ProcessGroup& group) {
        std::shared_ptr<ProcessGroup> child = group.new_group({0, 1});
        const OnDevice data(kElements * 4);
        const Buffer buffer = data.buffer(Dtype::kFloat32);
        const TestStream stream;
        const CallOptions options{.timeout = 60s, .order = stream.order()};
        const auto begin = std::chrono::steady_clock::now();
        const auto first = engine(*child).start(
            group.rank() == 0 ? sending(buffer, 1) : receiving(buffer, 0), options);
        first->wait();
        if (group.rank() == 1) return child.reset();
        const auto second = engine(*child).start(sending(buffer, 1), options);
        second->wait();
        child.reset();
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
        expect_error(ErrorCode::kPeerLost, {"rank 1", "has left group", "without receiving it"},
                     [&] { second->wait(); });
      },
      2);
}

// The ranks are processes, so this program must not use CUDA before it has started them.
class NcclMessageFault : public testing::Test {
 protected:
  void SetUp() override {
    if (uses_real_gpus()) GTEST_SKIP() << "the ranks would share the GPUs with this process";
    use_standins();
  }
};

// The device of the victim never reaches the message, which the other ranks have queued.
TEST_F(NcclMessageFault, a_rank_killed_with_messages_queued_is_named) {
  harness::SharedCounter queued;
  std::chrono::steady_clock::time_point killed;
  const auto results = harness::run_process_ranks(
      kRanksOfMessages,
      [&](ProcessGroup& group) {
        const TestStream stream;
        const OnDevice data(kElements * 4), more(kElements * 4);
        const Buffer buffer = data.buffer(Dtype::kFloat32), other = more.buffer(Dtype::kFloat32);
        const auto held = group.rank() == 1 ? std::make_unique<HeldStream>(stream.get()) : nullptr;
        const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
        const auto receive =
            engine(group).start(receiving(buffer, previous), {.order = stream.order()});
        const auto send = engine(group).start(sending(other, next), {.order = stream.order()});
        receive->wait();
        send->wait();
        queued.add();
        const WorkPtr last = group.rank() == 2 ? receive : send;
        if (!harness::wait_until([&] { return last->is_completed(); }, Deadline::after(20s))) {
          return std::string("a message never ended");
        }
        last->wait();
        group.barrier();
        return std::string("nothing happened");
      },
      {.backend = "nccl"},
      [&](const std::vector<pid_t>& pids) {
        queued.wait_for(kRanksOfMessages, Deadline::after(20s));
        killed = std::chrono::steady_clock::now();
        ::kill(pids[1], SIGKILL);
      });
  for (const std::size_t rank : {0u, 2u}) {
    const harness::ProcessResult& result = results[rank];
    ASSERT_TRUE(result.threw) << result.report << ", signal " << result.signal;
    EXPECT_STREQ(to_string(result.code), to_string(ErrorCode::kPeerLost)) << result.report;
    EXPECT_THAT(result.report, HasSubstr("rank 1"));
    EXPECT_LT(result.ended - killed, 6s) << result.report;
  }
}

// The message is not on the device yet, because the victim never asks for it.
TEST_F(NcclMessageFault, a_rank_killed_before_it_receives_is_named) {
  harness::SharedCounter sent;
  std::chrono::steady_clock::time_point killed;
  const auto results = harness::run_process_ranks(
      2,
      [&](ProcessGroup& group) {
        const TestStream stream;
        const OnDevice data(kElements * 4);
        if (group.rank() == 1) {
          for (;;) ::pause();
        }
        const auto send = engine(group).start(sending(data.buffer(Dtype::kFloat32), 1),
                                              {.order = stream.order()});
        sent.add();
        if (!harness::wait_until([&] { return send->is_completed(); }, Deadline::after(20s))) {
          return std::string("the message never ended");
        }
        send->wait();
        return std::string("nothing happened");
      },
      {.backend = "nccl"},
      [&](const std::vector<pid_t>& pids) {
        sent.wait_for(1, Deadline::after(20s));
        killed = std::chrono::steady_clock::now();
        ::kill(pids[1], SIGKILL);
      });
  ASSERT_TRUE(results[0].threw) << results[0].report;
  EXPECT_STREQ(to_string(results[0].code), to_string(ErrorCode::kPeerLost)) << results[0].report;
  EXPECT_THAT(results[0].report, HasSubstr("rank 1"));
  EXPECT_LT(results[0].ended - killed, 6s) << results[0].report;
}

}  // namespace
}  // namespace paceline
