// The engine's internal collectives, which all have number 0, between the calls of the group
// itself: for example when ranks agree on turns in a library.

#include <functional>
#include <latch>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/paceline/paceline_backend.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/transport/formation/connect.h"

#include "tests/engine/collectives/host_layouts.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fetch_from.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/watchdog.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 60;
constexpr std::uint64_t kGroup = 77;

struct CallSetting {
  const char* name;
  TransportKind transport;
  std::vector<int> host_of;
};

template <class T>
T reduce(PacelineBackend& backend, T mine, ReduceOp op, Dtype dtype, std::uint32_t number) {
  T all{};
  Collective call;
  call.op = Op::kAllReduce;
  call.reduce_op = op;
  call.dtype = dtype;
  call.count = 1;
  call.input = reinterpret_cast<const std::byte*>(&mine);
  call.output = reinterpret_cast<std::byte*>(&all);
  backend.run(call, make_fingerprint(call, number, 0, kGroup), {.deadline = Deadline::after(30s)});
  return all;
}

void run_rank(PacelineBackend& backend, int rank, int world) {
  std::mt19937 random(harness::random_seed() + static_cast<unsigned>(rank));
  for (int round = 1; round <= kRounds; ++round) {
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    const auto number = static_cast<std::uint32_t>(round);
    if (round % 3 == 0) {
      backend.run({}, make_fingerprint({}, number, 0, kGroup), {.deadline = Deadline::after(30s)});
    } else {
      const auto sum =
          reduce<std::int64_t>(backend, rank + round, ReduceOp::kSum, Dtype::kInt64, number);
      EXPECT_EQ(sum, world * round + world * (world - 1) / 2) << "in round " << round;
    }
    for (int i = 0; i < round % 4; ++i) {
      const bool is_refused = (round + i) % 2 == 0;
      const bool mine = !(is_refused && rank == (round + i) % world);
      const auto all =
          reduce<std::uint8_t>(backend, mine ? 1 : 0, ReduceOp::kMin, Dtype::kUint8, 0);
      EXPECT_EQ(all == 1, !is_refused) << "in round " << round << ", question " << i;
    }
  }
}

class UncountedCalls : public testing::TestWithParam<CallSetting> {};

void run_ranks(const CallSetting& setting,
               const std::function<void(PacelineBackend& backend, int rank)>& body) {
  const harness::Watchdog watchdog(120s, "uncounted calls");
  MemoryStore store;
  const auto secret = Secret::generate();
  std::vector<std::jthread> threads;
  const int world = static_cast<int>(setting.host_of.size());
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank, world] {
      ConnectOptions connect;
      connect.rank = rank;
      connect.world_size = world;
      connect.link.transport = setting.transport;
      connect.link.host = "host" + std::to_string(setting.host_of[static_cast<std::size_t>(rank)]);
      connect.publish = [&](const std::string& value) { store.set(std::to_string(rank), value); };
      connect.fetch = [&](const auto& ranks, auto wait) {
        return harness::fetch_from(store, ranks, wait);
      };
      EngineOptions options;
      options.group = kGroup;
      PacelineBackend backend(connect_mesh(connect, secret), options, Deadline::after(30s));
      body(backend, rank);
    });
  }
}

TEST_P(UncountedCalls, lie_between_the_groups_own) {
  const int world = static_cast<int>(GetParam().host_of.size());
  run_ranks(GetParam(),
            [&](PacelineBackend& backend, int rank) { run_rank(backend, rank, world); });
}

TEST(UncountedCallsText, a_missing_rank_is_described_by_its_own_last_call) {
  std::latch has_timed_out(1);
  run_ranks({"", TransportKind::kShm, {0, 0}}, [&](PacelineBackend& backend, int rank) {
    const auto bar = [&](std::uint32_t number, std::chrono::milliseconds limit) {
      backend.run({}, make_fingerprint({}, number, 0, kGroup),
                  {.deadline = Deadline::after(limit)});
    };
    bar(1, 30s);
    bar(0, 30s);
    if (rank == 0) {
      expect_error(ErrorCode::kTimeout, {"its last call was barrier #1"}, [&] { bar(2, 200ms); });
      has_timed_out.count_down();
    }
    has_timed_out.wait();
  });
}

std::vector<CallSetting> settings() {
  std::vector<CallSetting> all = {{"shared_memory", TransportKind::kShm, {0, 0, 0}},
                                  {"tcp", TransportKind::kTcp, {0, 0, 0}},
                                  {"loopback", TransportKind::kLoopback, {0, 0, 0}}};
  for (const HostLayout& layout : host_layouts()) {
    if (layout.host_of.size() <= 8)
      all.push_back({layout.name, TransportKind::kAuto, layout.host_of});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layouts, UncountedCalls, testing::ValuesIn(settings()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace paceline
