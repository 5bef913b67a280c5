// A rank that gives up just when another rank arrives, and the time that it then reports.

#include <array>
#include <chrono>
#include <latch>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/telemetry/flight_recorder.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/raw_mesh.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

class TwoBlocks final : public SharedBlocks {
 public:
  TwoBlocks() {
    bytes_ = sizeof(ControlBlock);
    for (auto& block : blocks_) bases_.push_back(reinterpret_cast<std::byte*>(&block));
  }
  ControlBlock& operator[](std::size_t rank) { return blocks_[rank]; }

 private:
  std::array<ControlBlock, 2> blocks_{};
};

// If the late rank passed, it would go on with memory that the other rank's caller uses for
// something else.
TEST(PhaseBarrier, no_rank_passes_another_that_gave_up_before_it_arrived) {
  const FreshDirectory records;
  FlightRecorder recorder({.directory = records.path(), .rank = 0, .world_size = 2});
  std::mt19937 random(harness::random_seed());
  std::uniform_int_distribution<int> microseconds(4000, 9000);
  int num_given_up = 0;
  for (int round = 0; round < 300; ++round) {
    auto raw = harness::make_raw_mesh();
    TwoBlocks blocks;
    PhaseBarrier barrier(*raw.mesh, blocks);
    Fingerprint operation;
    operation.sequence = 1;
    barrier.announce({operation, {}, {}});
    std::uint32_t seen = 0;
    const auto arrival =
        std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds(random));
    std::jthread late([&] {
      std::this_thread::sleep_until(arrival);  // the rank's work
      blocks[1].phase.store(1, std::memory_order_seq_cst);
      seen = blocks[0].given_up.load(std::memory_order_seq_cst);
    });
    bool has_given_up = false;
    try {
      barrier.arrive_and_wait(operation, {.deadline = Deadline::after(5ms), .recorder = &recorder});
    } catch (const Error& error) {
      has_given_up = error.code() == ErrorCode::kTimeout;
    }
    late.join();
    num_given_up += has_given_up ? 1 : 0;
    if (has_given_up) {
      EXPECT_NE(seen, 0u) << "round " << round;
    }
  }
  EXPECT_GT(num_given_up, 0);
}

TEST(PhaseBarrier, a_rank_that_arrives_late_does_not_shorten_the_time_in_the_error) {
  std::latch has_timed_out(1);
  harness::run_ranks(3, [&](ProcessGroup& group) {
    if (group.rank() == 2) return has_timed_out.wait();
    if (group.rank() == 1) {
      std::this_thread::sleep_for(1s);  // its work
      group.barrier();
      return;
    }
    try {
      group.barrier({.timeout = 2s});
      ADD_FAILURE() << "rank 2 was not waited for";
    } catch (const Error& error) {
      const std::string text = error.what(), before = "timed out after ";
      const std::size_t at = text.find(before);
      ASSERT_NE(at, std::string::npos) << text;
      EXPECT_GT(std::stod(text.substr(at + before.size())), 1.5) << text;
    }
    has_timed_out.count_down();
  });
}

}  // namespace
}  // namespace paceline
