// Faults of backend nccl, on the stand-ins for NVIDIA's libraries: every rank gets a sentence that
// names the rank at fault and the cure, within the deadline.

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"

#include "tests/engine/collectives/nccl/device_buffers.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/stopped_process.h"
#include "tests/harness/tiny_dev_shm.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::ProcessResult;
using harness::run_process_ranks;
using harness::SharedCounter;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kVictim = 1;

class NcclFault : public testing::Test {
 protected:
  void SetUp() override {
    if (uses_real_gpus()) GTEST_SKIP() << "the faults are those of the stand-ins";
    use_standins();
  }
};

// Calls collectives whose end on the device the program awaits, until an error.
std::string sum_for_ever(ProcessGroup& group, SharedCounter* running = nullptr,
                         std::chrono::milliseconds timeout = 20s) {
  const TestStream stream;
  const OnDevice data(std::size_t{1} << 16);
  for (int i = 0;; ++i) {
    if (i == 3 && running != nullptr) running->add();
    const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kMax,
                                       {.timeout = timeout, .order = stream.order()});
    work->wait();
    stream.synchronize();
  }
}

// Sets a variable on one rank, or on all (-1), before the rank loads the libraries.
std::function<void(int)> with(const char* name, const std::string& value, int on = -1) {
  return [=](int rank) {
    if (on < 0 || on == rank) setenv(name, value.c_str(), 1);
  };
}

// Every rank must end within the time limit of the group.
std::vector<ProcessResult> form(const std::function<void(int)>& before, int ranks = kRanks) {
  constexpr auto kLimit = 10'000ms;
  const auto begun = std::chrono::steady_clock::now();
  auto results =
      run_process_ranks(ranks, [](ProcessGroup&) { return std::string("formed"); },
                        {.backend = "nccl", .group_timeout = kLimit, .before_connect = before});
  for (const ProcessResult& result : results) EXPECT_LT(result.ended - begun, kLimit);
  return results;
}

template <class Matcher>
void expect_refused(const std::vector<ProcessResult>& results, ErrorCode code,
                    const Matcher& matcher) {
  for (const ProcessResult& result : results) {
    ASSERT_TRUE(result.threw) << result.report << ", signal " << result.signal;
    EXPECT_STREQ(to_string(result.code), to_string(code)) << result.report;
    EXPECT_THAT(result.report, matcher);
  }
}

// ---- before the group forms

TEST_F(NcclFault, ranks_with_two_versions_of_nccl_are_named) {
  expect_refused(form(with("STANDIN_NCCL_VERSION", "21805", kVictim)), ErrorCode::kInvalid,
                 AllOf(HasSubstr("rank 0 ("), HasSubstr("NCCL 2.21.3"), HasSubstr("rank 1 ("),
                       HasSubstr("NCCL 2.18.5"), HasSubstr("install the same version")));
}

TEST_F(NcclFault, two_ranks_on_one_gpu_are_named) {
  expect_refused(
      form([&](int rank) { setenv("CUDA_VISIBLE_DEVICES", rank == 2 ? "3,2,1" : "0,1,2", 1); }),
      ErrorCode::kInvalid,
      AllOf(HasSubstr("rank 1 ("), HasSubstr("rank 2 ("), HasSubstr("0000:11:00.0"),
            HasSubstr("LOCAL_RANK")));
}

TEST_F(NcclFault, more_ranks_than_gpus_are_counted) {
  expect_refused(form(with("PACELINE_SIMULATED_CUDA_DEVICES", "2")), ErrorCode::kInvalid,
                 AllOf(HasSubstr("rank 0 ("), HasSubstr("rank 2 ("),
                       HasSubstr("3 ranks share 2 GPUs"), HasSubstr("--nproc-per-node gpu")));
}

TEST_F(NcclFault, one_visible_gpu_is_device_0) {
  const auto results =
      form([](int rank) { setenv("CUDA_VISIBLE_DEVICES", std::to_string(rank).c_str(), 1); });
  for (const ProcessResult& result : results) EXPECT_EQ(result.report, "formed");
}

// Such a file has the name that the stand-in gives to its next one, because numbers of processes
// repeat.
TEST_F(NcclFault, a_file_that_an_ended_process_left_behind_is_replaced) {
  const auto results = form([](int rank) {
    if (rank == 0) std::ofstream("/dev/shm/standin-nccl-" + std::to_string(::getpid()) + "-1");
  });
  for (const ProcessResult& result : results) EXPECT_EQ(result.report, "formed");
}

TEST_F(NcclFault, a_gpu_of_another_process_is_named_on_every_rank) {
  expect_refused(form(with("STANDIN_CUDA_BUSY", "1")), ErrorCode::kInvalid,
                 AllOf(HasSubstr("choosing GPU 1 of 4"), HasSubstr("busy"),
                       HasSubstr("another process has exclusive use of the GPU")));
}

TEST_F(NcclFault, a_driver_that_is_too_old_is_named_with_both_versions) {
  expect_refused(form(with("STANDIN_CUDA_DRIVER", "11040", kVictim)), ErrorCode::kInvalid,
                 AllOf(HasSubstr("supports CUDA up to 11.4"), HasSubstr("for CUDA 12.4"),
                       HasSubstr("update the driver")));
}

TEST_F(NcclFault, no_gpu_and_a_fabric_that_is_not_ready_have_their_cures) {
  expect_refused(form(with("CUDA_VISIBLE_DEVICES", "", kVictim)), ErrorCode::kInvalid,
                 AllOf(HasSubstr("no GPU is visible"), HasSubstr("--gpus all")));
  expect_refused(form(with("STANDIN_CUDA_ERROR", "802", kVictim)), ErrorCode::kSystem,
                 HasSubstr("nvidia-fabricmanager"));
}

TEST_F(NcclFault, a_wrong_or_missing_libnccl_is_named_with_its_path) {
  expect_refused(form(with("PACELINE_LIBNCCL", STANDIN_CUDART, kVictim)), ErrorCode::kUnsupported,
                 AllOf(HasSubstr(STANDIN_CUDART), HasSubstr("is not a library of NCCL 2.14")));
  expect_refused(form(with("PACELINE_LIBNCCL", "/no/libnccl.so.2", kVictim)),
                 ErrorCode::kUnsupported,
                 AllOf(HasSubstr("NCCL cannot be loaded"), HasSubstr("/no/libnccl.so.2"),
                       HasSubstr("install NCCL")));
  expect_refused(form(with("STANDIN_NCCL_VERSION", "21003", kVictim)), ErrorCode::kUnsupported,
                 AllOf(HasSubstr("NCCL 2.10.3"), HasSubstr("install a newer NCCL")));
}

TEST_F(NcclFault, a_dev_shm_that_is_too_small_for_nccl_is_named) {
  if (!harness::in_a_process([] { return harness::make_dev_shm_tiny(); })) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  const auto results = form([](int) { harness::make_dev_shm_tiny(); });
  int num_told = 0;
  for (const ProcessResult& result : results) {
    ASSERT_TRUE(result.threw) << result.report;
    EXPECT_THAT(result.report, HasSubstr("rank 0"));
    num_told += result.report.find("docker run --shm-size") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(num_told, kRanks);
}

TEST_F(NcclFault, cuda_that_was_used_before_a_fork_is_refused_in_the_child) {
  ASSERT_EQ(why_no_gpus(1), "");
  EXPECT_TRUE(harness::in_a_process([] {
    expect_error(ErrorCode::kInvalid, {"fork()", "before the first use", "paceline run"},
                 [] { NcclApi::load(); });
    return !testing::Test::HasFailure();
  }));
  const auto results = form({}, 2);
  expect_refused(results, ErrorCode::kInvalid, HasSubstr("created this one by fork()"));
}

// ---- while calls are queued

void expect_survivors(const std::vector<ProcessResult>& results, ErrorCode code,
                      std::chrono::steady_clock::time_point since,
                      std::chrono::steady_clock::duration most) {
  for (int rank = 0; rank < static_cast<int>(results.size()); ++rank) {
    if (rank == kVictim) continue;
    const ProcessResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << "rank " << rank << ", signal " << result.signal;
    EXPECT_STREQ(to_string(result.code), to_string(code)) << result.report;
    EXPECT_LT(result.ended - since, most) << result.report;
  }
}

// The victim holds its stream, so that the others' operations wait for it on the device.
TEST_F(NcclFault, a_rank_killed_with_collectives_queued_is_named) {
  SharedCounter queued;
  std::chrono::steady_clock::time_point killed;
  const auto results = run_process_ranks(
      kRanks,
      [&](ProcessGroup& group) {
        const TestStream stream;
        const OnDevice data(std::size_t{1} << 16);
        const auto held = group.rank() == kVictim ? std::make_unique<HeldStream>(stream.get())
                                                  : std::unique_ptr<HeldStream>();
        std::vector<WorkPtr> works;
        for (int i = 0; i < 5; ++i) {
          works.push_back(queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kMax,
                                           {.order = stream.order()}));
          works.back()->wait();
        }
        queued.add();
        if (!harness::wait_until([&] { return works.back()->is_completed(); },
                                 Deadline::after(20s))) {
          return std::string("an operation never ended");
        }
        for (const WorkPtr& work : works) EXPECT_THROW(work->wait(), Error);
        group.barrier();
        return std::string("nothing happened");
      },
      {.backend = "nccl"},
      [&](const std::vector<pid_t>& pids) {
        queued.wait_for(kRanks, Deadline::after(20s));
        killed = std::chrono::steady_clock::now();
        ::kill(pids[kVictim], SIGKILL);
      });
  expect_survivors(results, ErrorCode::kPeerLost, killed, 6s);
  for (int rank : {0, 2}) {
    EXPECT_THAT(results[static_cast<std::size_t>(rank)].context.ranks,
                testing::ElementsAre(kVictim));
  }
}

TEST_F(NcclFault, a_stopped_rank_ends_the_others_at_their_deadline) {
  SharedCounter running;
  std::chrono::steady_clock::time_point stopped;
  const auto results = run_process_ranks(
      kRanks, [&](ProcessGroup& group) { return sum_for_ever(group, &running, 2s); },
      {.backend = "nccl"},
      [&](const std::vector<pid_t>& pids) {
        running.wait_for(kRanks, Deadline::after(20s));
        stopped = std::chrono::steady_clock::now();
        ::kill(pids[kVictim], SIGSTOP);
        harness::wait_for_the_end_of(pids[0], Deadline::after(20s));
        harness::wait_for_the_end_of(pids[2], Deadline::after(20s));
        ::kill(pids[kVictim], SIGCONT);
      });
  for (int rank : {0, 2}) {
    const ProcessResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << result.report;
    EXPECT_LT(result.ended - stopped, 10s) << result.report;
    EXPECT_THAT(result.report, HasSubstr("all_reduce #"));
  }
}

TEST_F(NcclFault, an_asynchronous_error_of_nccl_fails_every_rank) {
  const auto begun = std::chrono::steady_clock::now();
  const auto results =
      run_process_ranks(kRanks, [](ProcessGroup& group) { return sum_for_ever(group); },
                        {.backend = "nccl", .before_connect = with("STANDIN_NCCL_ASYNC", "1")});
  for (const ProcessResult& result : results) {
    ASSERT_TRUE(result.threw) << result.report;
    EXPECT_LT(result.ended - begun, 15s);
    EXPECT_THAT(result.report, AllOf(HasSubstr("rank 1"), HasSubstr("NCCL error 6"),
                                     HasSubstr("see that rank's output")));
  }
}

TEST_F(NcclFault, a_rank_that_never_joins_on_the_device_is_a_timeout) {
  const auto results = run_process_ranks(
      kRanks, [](ProcessGroup& group) { return sum_for_ever(group, nullptr, 1500ms); },
      {.backend = "nccl", .before_connect = with("STANDIN_NCCL_SKIP", "1")});
  for (const int rank : {0, 2}) {
    const ProcessResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << result.report;
    EXPECT_THAT(result.report, HasSubstr("all_reduce #1"));
  }
}

TEST_F(NcclFault, an_abort_that_hangs_does_not_hold_up_the_error) {
  const auto begun = std::chrono::steady_clock::now();
  const auto results = run_process_ranks(
      kRanks,
      [](ProcessGroup& group) {
        const TestStream stream;
        const OnDevice data(400);
        const auto work = queue_all_reduce(group, data.buffer(Dtype::kFloat32), ReduceOp::kMax,
                                           {.timeout = 1500ms, .order = stream.order()});
        EXPECT_TRUE(
            harness::wait_until([&] { return work->is_completed(); }, Deadline::after(15s)));
        if (group.rank() == kVictim) return std::string("its device skipped it");
        work->wait();
        return std::string("no error");
      },
      {.backend = "nccl", .before_connect = [](int) {
         setenv("STANDIN_NCCL_SKIP", "1", 1);
         setenv("STANDIN_NCCL_ABORT_HANGS", "any", 1);
       }});
  for (const int rank : {0, 2}) {
    const ProcessResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.threw) << result.report;
    EXPECT_LT(result.ended - begun, 20s) << result.report;
  }
}

}  // namespace
}  // namespace paceline
