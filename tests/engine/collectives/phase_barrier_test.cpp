// A rank that gives up just when another rank arrives.

#include <array>
#include <chrono>
#include <optional>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/telemetry/flight_recorder.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/raw_mesh.h"

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

}  // namespace
}  // namespace paceline
