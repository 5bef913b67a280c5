// Ranks that are killed and stopped while simulated CUDA devices are at work: every other rank gets
// an error that names the rank at fault, within the deadline. The ranks are processes, so this
// program must not use a device before it has started them.

#include <chrono>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/standins.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::borrowed;
using harness::ProcessResult;
using harness::SharedCounter;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Tensors = PipelineStage::Tensors;

constexpr int kRanks = 3, kVictim = 1, kMicroBatches = 4;

// Queues a task in a stream that never ends, and counts when the stream has come to it.
void hold_for_ever(const c10::Stream& stream, SharedCounter& reached) {
  simulated::Stream::of(stream.device_index(), stream.id()).push([&reached] {
    reached.add();
    for (;;) ::pause();
  });
}

using Body = std::function<void(ProcessGroup& group, c10::Device device, SharedCounter& reached)>;

// Sends `signal` to the victim once its device is held, and expects that the other ranks end with
// an error that names it, within `most`.
void expect_named(int signal, std::chrono::milliseconds timeout, Clock::duration most,
                  const Body& body, const std::string& backend = "") {
  SharedCounter reached;
  Clock::time_point sent;
  const auto results = harness::run_process_ranks(
      kRanks,
      [&](ProcessGroup& group) {
        at::set_num_threads(1);
        const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.rank() + 1));
        const c10::DeviceGuard guard(device);
        body(group, device, reached);
        return std::string("no error");
      },
      {.backend = backend,
       .group_timeout = timeout,
       .before_connect =
           [](int rank) {
             harness::use_standins();
             const auto device = static_cast<c10::DeviceIndex>(rank + 1);
             set_current_device({c10::kCUDA, device});  // NCCL's, from the beginning
           }},
      [&](const std::vector<pid_t>& pids) {
        reached.wait_for(1, Deadline::after(60s));
        sent = Clock::now();
        ::kill(pids[kVictim], signal);
        if (signal != SIGSTOP) return;
        for (const int rank : {0, 2}) {
          harness::wait_for_the_end_of(pids[static_cast<std::size_t>(rank)], Deadline::after(30s));
        }
        ::kill(pids[kVictim], SIGCONT);
      });
  for (const std::size_t rank : {0u, 2u}) {
    const ProcessResult& result = results[rank];
    ASSERT_TRUE(result.threw) << "rank " << rank << ": " << result.report;
    EXPECT_THAT(result.report, HasSubstr("rank 1")) << "rank " << rank;
    EXPECT_LT(result.ended - sent, most) << result.report;
    if (signal == SIGKILL) {
      EXPECT_STREQ(to_string(result.code), to_string(ErrorCode::kPeerLost)) << result.report;
    }
  }
  if (signal == SIGSTOP) {
    EXPECT_TRUE(results[kVictim].threw) << "the stopped rank goes on, and learns of the failure";
  }
}

// The victim's device never copies the message that the victim sends to the next stage; over NCCL
// it never computes it, and the other ranks have queued theirs.
void take_pipeline_step(ProcessGroup& group, c10::Device device, SharedCounter& reached) {
  torch::nn::Linear layer(6, 6);
  layer->to(device);
  PipelineStage stage = make_stage(group.rank(), layer);
  if (group.rank() == kVictim) {
    stage.forward = [&reached, &group, device, calls = 0,
                     inner = stage.forward](const Tensors& inputs) mutable {
      if (++calls == 2) {
        if (group.backend() == "paceline") {
          hold_for_ever(side_stream(device, SideStream::kToHost), reached);
        } else {
          ::setenv("STANDIN_NCCL_SKIP", "any", 1);
          reached.add();
        }
      }
      return inner(inputs);
    };
  }
  std::vector<Tensors> inputs;
  for (int i = 0; group.rank() == 0 && i < kMicroBatches; ++i)
    inputs.push_back({torch::ones({2, 6}, device)});
  Pipeline(borrowed(group), pipeline_schedule("1f1b", kRanks, kMicroBatches), {stage})
      .step(inputs, [](const Tensors& outputs, int) { return outputs[0].mean(); });
}

// As above. With NCCL a step ends before the device has finished it, so the error may come later.
void take_pipeline_steps(ProcessGroup& group, c10::Device device, SharedCounter& reached) {
  take_pipeline_step(group, device, reached);
  for (;;) {
    all_reduce(group, torch::ones({10}, device));
    StreamEvent::after_current(device).wait_on_host(Deadline::after(20s), "the device");
  }
}

// The victim's device never comes to the collectives that are queued behind other work.
void queue_collectives(ProcessGroup& group, c10::Device device, SharedCounter& reached) {
  const at::Tensor values = torch::ones({1000}, device);
  all_reduce(group, values);
  if (group.rank() == kVictim) hold_for_ever(current_stream_of(device), reached);
  std::vector<WorkPtr> works;
  for (int i = 0; i < 5; ++i)
    works.push_back(all_reduce(group, values, ReduceOp::kMax, {.async_op = true}));
  for (const WorkPtr& work : works) work->wait();
}

TEST(DeviceFaults, a_rank_killed_with_a_message_of_a_pipeline_in_flight_is_named) {
  expect_named(SIGKILL, 20s, 10s, take_pipeline_step);
}

TEST(DeviceFaults, a_rank_stopped_with_a_message_of_a_pipeline_in_flight_is_named) {
  expect_named(SIGSTOP, 3s, 15s, take_pipeline_step);
}

TEST(DeviceFaults, a_rank_killed_with_collectives_queued_is_named) {
  expect_named(SIGKILL, 20s, 10s, queue_collectives);
}

TEST(DeviceFaults, a_rank_stopped_with_collectives_queued_is_named) {
  expect_named(SIGSTOP, 3s, 15s, queue_collectives);
}

TEST(DeviceFaults, a_rank_killed_with_a_message_of_a_pipeline_queued_in_nccl_is_named) {
  expect_named(SIGKILL, 20s, 10s, take_pipeline_steps, "cpu:paceline,cuda:nccl");
}

TEST(DeviceFaults, a_rank_stopped_with_a_message_of_a_pipeline_queued_in_nccl_is_named) {
  expect_named(SIGSTOP, 3s, 15s, take_pipeline_steps, "cpu:paceline,cuda:nccl");
}

}  // namespace
}  // namespace paceline
