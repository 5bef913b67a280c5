// Groups whose ranks are connected by several TCP streams each, and ranks that disagree about their
// number. The conformance suite also runs over streams (conformance_test.cpp), with shorter
// messages.

#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"

#include "tests/engine/collectives/odd_rank.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::RanksOptions;
using harness::run_ranks;
using harness::run_ranks_ok;
using namespace std::chrono_literals;

RanksOptions with_streams(int streams, bool encrypt = false) {
  RanksOptions options;
  options.transport = TransportKind::kTcp;
  options.adjust = [=](int, GroupOptions& group) {
    group.link.tcp_streams = streams;
    group.link.encrypt = encrypt;
  };
  return options;
}

// Element i of rank `from`'s block for rank `to`.
std::int32_t value(int from, int to, std::size_t i) {
  return static_cast<std::int32_t>(i * 7 + i / 4096) + 1000 * from + to;
}

std::vector<std::int32_t> block(int from, int to, std::size_t count) {
  std::vector<std::int32_t> elements(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = value(from, to, i);
  return elements;
}

void append(std::vector<std::int32_t>& all, const std::vector<std::int32_t>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void use_long_messages(ProcessGroup& group) {
  const int world = group.world_size();
  for (const std::size_t count : {40'000, 262'145, 3'000'001}) {
    std::vector<std::int32_t> data = block(group.rank(), 0, count), sum(count);
    group.all_reduce(std::span(data));
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = value(0, 0, i) * world + 1000 * world * (world - 1) / 2;
    }
    ASSERT_EQ(data, sum);
    data = block(group.rank(), 0, count);
    group.broadcast(std::span(data), world - 1);
    ASSERT_EQ(data, block(world - 1, 0, count));
    std::vector<std::int32_t> given, got(count * static_cast<std::size_t>(world)), expected;
    for (int other = 0; other < world; ++other) {
      append(given, block(group.rank(), other, count));
      append(expected, block(other, group.rank(), count));
    }
    group.all_to_all(std::span(got), std::span(given));
    ASSERT_EQ(got, expected);
  }
  group.barrier();
}

void use_coalesced_and_point_to_point(ProcessGroup& group) {
  std::vector<float> first(200'000, 1.0F), second(700'003, 2.0F), third(3, 3.0F);
  const std::vector<Buffer> all = {std::span(first), std::span(second), std::span(third)};
  group.all_reduce_coalesced(all);
  const auto world = static_cast<float>(group.world_size());
  EXPECT_EQ(first, std::vector<float>(first.size(), world));
  EXPECT_EQ(second, std::vector<float>(second.size(), 2 * world));
  EXPECT_EQ(third, std::vector<float>(third.size(), 3 * world));
  const int next = (group.rank() + 1) % group.world_size();
  const int last = (group.rank() + group.world_size() - 1) % group.world_size();
  const std::vector<double> mine(500'000, group.rank());
  std::vector<double> theirs(mine.size());
  const auto sent = group.isend(std::span(mine), next);
  group.recv(std::span(theirs), last);
  sent->wait();
  EXPECT_EQ(theirs, std::vector<double>(mine.size(), last));
}

TEST(Streams, carry_long_messages) {
  for (const int streams : {2, 5, 16}) run_ranks_ok(3, use_long_messages, with_streams(streams));
  run_ranks_ok(2, use_long_messages, with_streams(3));
}

TEST(Streams, are_encrypted_each) { run_ranks_ok(3, use_long_messages, with_streams(3, true)); }

TEST(Streams, serve_coalesced_calls_and_leave_point_to_point_alone) {
  run_ranks_ok(3, use_coalesced_and_point_to_point, with_streams(3));
}

TEST(Streams, serve_groups_made_of_a_group) {
  run_ranks_ok(
      3,
      [](ProcessGroup& group) {
        const auto part = group.split(group.rank() == 0 ? -1 : 1, 0);
        if (part->is_member()) use_long_messages(*part);
      },
      with_streams(3));
}

// Ranks use shared memory within a host, and streams between hosts.
TEST(Streams, join_hosts_only) {
  auto options = with_streams(4);
  options.transport = TransportKind::kAuto;
  options.adjust = [](int rank, GroupOptions& group) {
    group.link.tcp_streams = 4;
    group.link.host = std::to_string(rank / 2);
  };
  run_ranks_ok(4, use_long_messages, options);
}

TEST(Streams, keep_the_bits_of_a_sum) {
  constexpr std::size_t kCount = 1'500'007;
  std::vector<std::vector<float>> sums;
  for (const int streams : {1, 3}) {
    std::vector<float> sum;
    run_ranks_ok(
        3,
        [&](ProcessGroup& group) {
          std::vector<float> data(kCount);
          for (std::size_t i = 0; i < kCount; ++i) {
            data[i] = 1.0F / static_cast<float>(i + 3 + static_cast<std::size_t>(group.rank()));
          }
          group.all_reduce(std::span(data));
          if (group.rank() == 0) sum = data;
        },
        with_streams(streams));
    sums.push_back(sum);
  }
  EXPECT_EQ(std::memcmp(sums[0].data(), sums[1].data(), kCount * sizeof(float)), 0);
}

TEST(Streams, a_rank_with_another_number_is_named_on_every_rank) {
  for (const int odd : {0, 2}) {
    RanksOptions options;
    options.transport = TransportKind::kTcp;
    options.adjust = [&](int rank, GroupOptions& group) {
      group.link.tcp_streams = rank == odd ? 2 : 3;
    };
    expect_odd_rank_named(odd, "PACELINE_TCP_STREAMS", options);
  }
}

TEST(Streams, an_impossible_number_is_refused) {
  for (const int streams : {-1, 0, 17}) {
    const auto results = run_ranks(
        2, [](ProcessGroup&) { ADD_FAILURE() << "a group formed"; }, with_streams(streams));
    for (const auto& result : results) {
      ASSERT_TRUE(result.error) << streams;
      EXPECT_EQ(result.error->code(), ErrorCode::kInvalid) << result.error->what();
    }
  }
}

TEST(Streams, a_variable_outside_its_range_is_refused) {
  for (const char* text : {"0", "17", "-1", "3x", "many"}) {
    ::setenv("PACELINE_TCP_STREAMS", text, 1);
    expect_error(ErrorCode::kInvalid, {"PACELINE_TCP_STREAMS"}, [] { init_process_group(); });
  }
  ::unsetenv("PACELINE_TCP_STREAMS");
}

}  // namespace
}  // namespace paceline
