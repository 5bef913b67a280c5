#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/asleep.h"
#include "tests/harness/raw_mesh.h"

namespace paceline {
namespace {

using harness::make_raw_mesh;
using namespace std::chrono_literals;

const std::vector<std::string> kKeys = {"a", "b"};

std::optional<Error> error_of_waiting(Store& store, Mesh& mesh, std::chrono::milliseconds limit) {
  try {
    wait_for_keys(store, kKeys, mesh, Deadline::after(limit), "Gloo");
  } catch (const Error& error) {
    return error;
  }
  return {};
}

TEST(WaitForKeys, a_missing_rank_is_named_at_the_deadline) {
  const auto raw = make_raw_mesh();
  MemoryStore store;
  store.set("a", "1");
  const auto begin = std::chrono::steady_clock::now();
  const auto error = error_of_waiting(store, *raw.mesh, 200ms);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kTimeout);
  EXPECT_THAT(error->what(),
              testing::MatchesRegex("rank 0: a rank of group world did not arrive within "
                                    "[0-9.]+ s to connect with Gloo"));
}

TEST(WaitForKeys, a_peer_that_dies_meanwhile_ends_the_wait) {
  auto raw = make_raw_mesh();
  MemoryStore store;
  std::jthread killer([&, waiter = gettid()] {
    harness::wait_until_asleep(waiter);
    raw.die();
  });
  const auto error = error_of_waiting(store, *raw.mesh, 60s);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
  EXPECT_EQ(error->ranks(), std::vector{1});
}

TEST(WaitForKeys, keys_that_are_there_are_taken_also_after_the_deadline) {
  const auto raw = make_raw_mesh();
  MemoryStore store;
  store.set("a", "1");
  std::jthread last([&, waiter = gettid()] {
    harness::wait_until_asleep(waiter);
    store.set("b", "1");
  });
  EXPECT_FALSE(error_of_waiting(store, *raw.mesh, 60s));
  EXPECT_FALSE(error_of_waiting(store, *raw.mesh, 0ms));
}

}  // namespace
}  // namespace paceline
