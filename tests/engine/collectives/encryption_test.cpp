// Groups with encrypted connections, and ranks that disagree about encryption.

#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/backend_list.h"

#include "tests/engine/collectives/odd_rank.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::RanksOptions;
using harness::run_ranks;
using harness::run_ranks_ok;
using namespace std::chrono_literals;

RanksOptions encrypted(TransportKind transport) {
  RanksOptions options;
  options.transport = transport;
  options.adjust = [](int, GroupOptions& group) { group.link.encrypt = true; };
  return options;
}

void use_everything(ProcessGroup& group) {
  const int world = group.world_size();
  for (const std::size_t count : {1, 1000, 100'000, 3'000'001}) {
    std::vector<std::int32_t> data(count, group.rank());
    group.all_reduce(std::span(data));
    ASSERT_EQ(data, std::vector<std::int32_t>(count, world * (world - 1) / 2));
    group.broadcast(std::span(data), world - 1);
  }
  const int next = (group.rank() + 1) % world, last = (group.rank() + world - 1) % world;
  for (const std::size_t count : {0, 1, 500'000}) {
    const std::vector<double> mine(count, group.rank());
    std::vector<double> theirs(count);
    const auto sent = group.isend(std::span(mine), next);
    group.recv(std::span(theirs), last);
    sent->wait();
    ASSERT_EQ(theirs, std::vector<double>(count, last));
  }
  group.barrier();
}

TEST(Encryption, everything_works_as_without_it) {
  run_ranks_ok(3, use_everything, encrypted(TransportKind::kTcp));
}

TEST(Encryption, ranks_of_a_host_still_share_memory) {
  run_ranks_ok(
      2, [](ProcessGroup& group) { EXPECT_EQ(group.transport(), "shm"); },
      encrypted(TransportKind::kShm));
  auto options = encrypted(TransportKind::kAuto);
  options.adjust = [](int rank, GroupOptions& group) {
    group.link.encrypt = true;
    group.link.host = std::to_string(rank / 2);
  };
  run_ranks_ok(
      4,
      [](ProcessGroup& group) {
        EXPECT_EQ(group.transport(), "shm+tcp");
        use_everything(group);
      },
      options);
}

TEST(Encryption, groups_made_of_a_group_encrypt_too) {
  run_ranks_ok(
      3,
      [](ProcessGroup& group) {
        const auto part = group.split(group.rank() == 0 ? -1 : 1, 0);
        if (part->is_member()) use_everything(*part);
      },
      encrypted(TransportKind::kTcp));
}

TEST(Encryption, a_rank_that_does_not_encrypt_is_named_on_every_rank) {
  for (const int odd : {0, 2}) {
    RanksOptions options;
    options.transport = TransportKind::kTcp;
    options.group_timeout = 20s;
    options.adjust = [&](int rank, GroupOptions& group) { group.link.encrypt = rank != odd; };
    expect_odd_rank_named(odd, "--encrypt", options);
  }
}

TEST(Encryption, a_backend_that_cannot_is_refused) {
  if (!is_backend_available("gloo")) GTEST_SKIP() << "this build has no gloo";
  auto options = encrypted(TransportKind::kTcp);
  options.backend = "gloo";
  const auto results = run_ranks(
      2, [](ProcessGroup&) { ADD_FAILURE() << "a group formed"; }, options);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kUnsupported) << result.error->what();
  }
}

}  // namespace
}  // namespace paceline
