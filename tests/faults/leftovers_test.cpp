// Groups leave nothing behind: no descriptors, no memory, no entries in /dev/shm.

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/shared_memory_files.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

using harness::names_in;
using harness::new_in_shared_memory;
using harness::run_process_ranks;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::SharedCounter;
using testing::IsEmpty;
using namespace std::chrono_literals;

std::size_t num_descriptors() { return names_in("/proc/self/fd").size(); }

double resident_mib() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMayGrowMib = 400;  // freed memory stays in quarantine, and accesses are recorded
#else
constexpr double kMayGrowMib = 4;
#endif

// With several arenas, memory that many threads have freed would stay in them and look like a leak.
// mallopt() must be called before there are threads.
[[maybe_unused]] const int has_one_arena = mallopt(M_ARENA_MAX, 1);

// UCX keeps some of the memory of its workers, but this does not grow further (600 groups: 8 MiB).
double may_grow_mib(TransportKind transport) {
  return transport == TransportKind::kUcx ? kMayGrowMib + 16 : kMayGrowMib;
}

class LeftoversTest : public testing::TestWithParam<TransportKind> {
  const harness::UcxTransports transports_{"tcp"};
};

// Makes every kind of call that a rank can make; called also in a group that fails.
void use(ProcessGroup& group) {
  const auto buffer = group.allocate_symmetric(1 << 20);
  group.all_reduce(buffer.as<float>(), ReduceOp::kMax);
  std::vector<float> data(70'000);
  group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true})->wait();
  const auto half = group.split(group.rank() % 2, 0);
  half->barrier();
  const int next = (group.rank() + 1) % group.world_size();
  const auto sent = group.isend(std::span(data), next);
  std::vector<float> got(data.size());
  group.recv(std::span(got), kAnySource);
  sent->wait();
}

TEST_P(LeftoversTest, many_groups_leave_no_descriptor_and_no_memory) {
  const int rounds = GetParam() == TransportKind::kUcx ? 40 : 100;  // UCX's take ten times as long
  const auto round = [&](int number) {
    run_ranks_ok(3, use, {.transport = GetParam()});
    if (number % 10 != 0) return;
    run_ranks(3,
              [](ProcessGroup& group) {
                auto data = std::make_shared<std::vector<float>>(group.rank() + 1);
                group.isend(std::span(*data), (group.rank() + 1) % 3, 0,
                            {.timeout = {}, .keep_alive = data});
                group.all_reduce(std::span(*data));
              },
              {.transport = GetParam()});
  };
  for (int i = 0; i < 20; ++i) round(i);
  const auto descriptors = num_descriptors();
  const auto shared = names_in("/dev/shm");
  const double resident = resident_mib();
  for (int i = 0; i < rounds; ++i) round(i);
  EXPECT_EQ(num_descriptors(), descriptors);
  EXPECT_THAT(new_in_shared_memory(shared), IsEmpty());
  EXPECT_LT(resident_mib() - resident, may_grow_mib(GetParam()));
}

TEST_P(LeftoversTest, killed_ranks_leave_nothing_in_dev_shm_and_no_descriptor) {
  const auto descriptors = num_descriptors();
  const auto shared = names_in("/dev/shm");
  for (int round = 0; round < 5; ++round) {
    SharedCounter running;
    run_process_ranks(
        2,
        [&](ProcessGroup& group) {
          const auto buffer = group.allocate_symmetric(1 << 20);
          group.barrier();
          running.add();
          for (;;) group.all_reduce(buffer.as<float>(), ReduceOp::kMax);
          return std::string();
        },
        {.transport = GetParam()},
        [&](const std::vector<pid_t>& pids) {
          running.wait_for(2, Deadline::after(20s));
          for (const pid_t pid : pids) ::kill(pid, SIGKILL);
        });
  }
  EXPECT_EQ(num_descriptors(), descriptors);
  EXPECT_THAT(new_in_shared_memory(shared), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Transports, LeftoversTest,
                         testing::ValuesIn(harness::and_ucx(
                             {TransportKind::kAuto, TransportKind::kShm, TransportKind::kTcp})),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace paceline
