// Ranks that do not make the same call get a typed error at once on every rank, never a wrong sum,
// never a hang. One table of mismatches runs over every transport, for 2, 3 and 4 ranks, with the
// first or the last rank as the odd one: all pairs of these values, not all combinations.

#include <algorithm>
#include <array>
#include <iostream>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "paceline/engine/collectives/backends/paceline/paceline_backend.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/transport/formation/connect.h"
#include "paceline/engine/transport/wire.h"

#include "tests/engine/collectives/mismatches.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fetch_from.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/watchdog.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::vector<float> floats(std::size_t count) { return std::vector<float>(count, 1.0f); }

void all_reduce(ProcessGroup& group, std::size_t count) { Caller{group}.all_reduce(count); }

constexpr std::array kTransports = {TransportKind::kLoopback, TransportKind::kShm,
                                    TransportKind::kTcp};
constexpr std::array kWorlds = {2, 3, 4};

struct MismatchCase {
  Mismatch mismatch;
  TransportKind transport;
  int world;
  int odd;
};

// Pairwise, in three cases for each mismatch: the mismatch meets every transport, every world size
// and both odd ranks. Over all mismatches, every transport meets every world size and both odd
// ranks, and every world size meets both odd ranks.
std::vector<MismatchCase> mismatch_cases() {
  std::vector<MismatchCase> cases;
  for (std::size_t i = 0; i < mismatches().size(); ++i) {
    for (std::size_t j = 0; j < kTransports.size(); ++j) {
      const int world = kWorlds[(i + j) % kWorlds.size()];
      const bool is_first = (i / kWorlds.size() + j) % 2 == 0;
      cases.push_back({mismatches()[i], kTransports[j], world, is_first ? 0 : world - 1});
    }
  }
  return cases;
}

class MismatchTest : public testing::TestWithParam<MismatchCase> {
 protected:
  static void TearDownTestSuite() { print_noticed(); }
};

TEST_P(MismatchTest, is_a_typed_error_on_every_rank_at_once) {
  const auto& [mismatch, transport, world, odd] = GetParam();
  expect_noticed(mismatch, {.world = world,
                            .odd = odd,
                            .over = std::string(name_of(transport)),
                            .options = {.transport = transport}});
}

std::string case_name(const testing::TestParamInfo<MismatchCase>& info) {
  const auto& [mismatch, transport, world, odd] = info.param;
  return std::string(mismatch.name) + "_" + std::string(name_of(transport)) + "_" +
         std::to_string(world) + (odd == 0 ? "_first" : "_last");
}

INSTANTIATE_TEST_SUITE_P(Pairs, MismatchTest, testing::ValuesIn(mismatch_cases()), case_name);

// Every mismatch with every algorithm for ranks that share no memory (the hierarchy needs hosts and
// is tested in mismatch_layouts_test.cpp). World sizes and odd ranks take turns, so that each
// algorithm meets all of them.
class AlgorithmMismatchTest : public testing::TestWithParam<Algorithm> {
 protected:
  static void TearDownTestSuite() { print_noticed(); }
};

TEST_P(AlgorithmMismatchTest, is_a_typed_error_on_every_rank_at_once) {
  const Algorithm algorithm = GetParam();
  for (std::size_t i = 0; i < mismatches().size(); ++i) {
    const Mismatch& mismatch = mismatches()[i];
    std::cout << mismatch.name << std::endl;  // names the mismatch in case a watchdog ends it
    const int world = kWorlds[(i + static_cast<std::size_t>(algorithm)) % kWorlds.size()];
    MismatchRun run{.world = world,
                    .odd = i % 2 == 0 ? 0 : world - 1,
                    .over = "tcp by every algorithm",
                    .options = {.transport = TransportKind::kTcp}};
    run.options.adjust = [algorithm](int /*rank*/, GroupOptions& group) {
      group.planning.algorithm = algorithm;
      group.planning.allows_any_order = true;
    };
    run.inspect = [algorithm](const ProcessGroup& group) { expect_algorithm(group, algorithm); };
    expect_noticed(mismatch, run);
  }
}

std::vector<Algorithm> algorithms_without_hosts() {
  std::vector<Algorithm> algorithms(kAllAlgorithms.begin(), kAllAlgorithms.end());
  std::erase(algorithms, Algorithm::kHierarchy);
  return algorithms;
}

INSTANTIATE_TEST_SUITE_P(Algorithms, AlgorithmMismatchTest,
                         testing::ValuesIn(algorithms_without_hosts()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// ---- errors that the calls of a group cannot make by themselves

using MismatchSetting = std::tuple<TransportKind, int>;

std::string setting_name(const testing::TestParamInfo<MismatchSetting>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

const auto kSettings = testing::Combine(testing::ValuesIn(kTransports), testing::ValuesIn(kWorlds));

// The last rank's collectives carry another group or generation than those of the others, over a
// mesh that connected all of them: fingerprints are the second check after the handshake.
class ForeignTest : public testing::TestWithParam<MismatchSetting> {
 protected:
  void run(const std::function<void(Fingerprint&)>& change) {
    const auto [transport, world] = GetParam();
    const harness::Watchdog watchdog(60s, "foreign fingerprints");
    MemoryStore store;
    const auto secret = Secret::generate();
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(world));
    std::vector<std::jthread> threads;
    const auto begin = Clock::now();
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, transport = transport, world = world, rank] {
        ConnectOptions connect;
        connect.rank = rank;
        connect.world_size = world;
        connect.link.transport = transport;
        connect.publish = [&](const std::string& value) { store.set(std::to_string(rank), value); };
        connect.fetch = [&](const auto& ranks, auto wait) {
          return harness::fetch_from(store, ranks, wait);
        };
        auto data = floats(1000);
        Collective call;
        call.op = Op::kAllReduce;
        call.dtype = Dtype::kFloat32;
        call.count = data.size();
        call.input = call.output = reinterpret_cast<std::byte*>(data.data());
        auto fingerprint = make_fingerprint(call, 1, 0, 77);
        if (rank == world - 1) change(fingerprint);
        try {
          EngineOptions options;
          options.group = 77;
          PacelineBackend backend(connect_mesh(connect, secret), options, Deadline::after(kNever));
          backend.run(call, fingerprint, {.deadline = Deadline::after(kNever)});
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error;
        }
      });
    }
    threads.clear();
    EXPECT_LT(Clock::now() - begin, kLimit);
    for (const auto& error : errors) {
      ASSERT_TRUE(error);
      EXPECT_THAT(error->code(), AnyOf(ErrorCode::kInvalid, ErrorCode::kAborted));
      EXPECT_THAT(error->what(), Says("mismatch.other_generation"));
    }
  }
};

TEST_P(ForeignTest, group_is_a_typed_error_on_every_rank) {
  run([](Fingerprint& fingerprint) { fingerprint.group = 78; });
}

TEST_P(ForeignTest, generation_is_a_typed_error_on_every_rank) {
  run([](Fingerprint& fingerprint) { fingerprint.group = make_fingerprint({}, 1, 1, 77).group; });
}

INSTANTIATE_TEST_SUITE_P(Matrix, ForeignTest, kSettings, setting_name);

class MatchTest : public testing::TestWithParam<MismatchSetting> {
 protected:
  TransportKind transport() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  std::vector<harness::RankResult> run(const harness::RankBody& body,
                                       std::chrono::milliseconds timeout = kNever) const {
    return run_ranks(world(), body, {.transport = transport(), .group_timeout = timeout});
  }
};

TEST_P(MatchTest, members_of_a_new_group_that_differ_are_an_error_on_every_rank) {
  const auto begin = Clock::now();
  const auto results = run([](ProcessGroup& group) {
    std::vector<int> all(world_of(group));
    std::iota(all.begin(), all.end(), 0);
    auto reversed = all;
    std::reverse(reversed.begin(), reversed.end());
    auto fewer = all;
    if (group.world_size() > 2) fewer.pop_back();
    group.new_group(group.rank() == 0 ? (group.world_size() > 2 ? fewer : reversed) : all);
  });
  EXPECT_LT(Clock::now() - begin, kLimit);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid) << result.error->what();
    EXPECT_THAT(result.error->what(), Says("mismatch.new_group", 1, "world"));
  }
}

// Ranks cannot compare which of two groups they use first, so only the deadline ends the wait.
TEST_P(MatchTest, groups_used_in_different_orders_end_at_the_deadline_on_every_rank) {
  const auto results = run(
      [](ProcessGroup& group) {
        std::vector<int> all(world_of(group));
        std::iota(all.begin(), all.end(), 0);
        const auto other = group.new_group(all);
        const bool odd = group.rank() == 0;
        all_reduce(odd ? *other : group, 100);
        all_reduce(odd ? group : *other, 100);
      },
      300ms);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->code(),
                AnyOf(ErrorCode::kTimeout, ErrorCode::kAborted, ErrorCode::kPeerLost));
    EXPECT_EQ(result.error->operation(), "all_reduce") << result.error->what();
  }
}

TEST_P(MatchTest, async_against_blocking_is_not_a_mismatch) {
  run_ranks_ok(world(),
               [](ProcessGroup& group) {
                 for (int i = 0; i < 10; ++i) {
                   auto data = floats(5000);
                   if ((group.rank() + i) % 2 == 0) {
                     group.all_reduce(std::span(data));
                   } else {
                     group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true})->wait();
                   }
                   ASSERT_EQ(data[4999], static_cast<float>(group.world_size()));
                 }
               },
               {.transport = transport()});
}

// The other ranks wait in a barrier for the two ranks whose messages do not match.
TEST_P(MatchTest, a_message_of_another_size_or_type_is_an_error_on_every_rank) {
  for (const bool other_type : {false, true}) {
    for (const bool sent_before : {false, true}) {
      const auto begin = Clock::now();
      const auto results = run([&](ProcessGroup& group) {
        std::vector<double> doubles(100);
        auto data = floats(101);
        if (group.rank() == 0) {
          group.send(std::span(data), 1);
          if (sent_before) group.send(std::span(data), 1, 7);
        } else if (group.rank() == 1) {
          if (sent_before) group.recv(std::span(data), 0, 7);  // the first one has arrived by now
          if (other_type) {
            group.recv(std::span(doubles), 0);
          } else {
            group.recv(std::span(data).first(100), 0);
          }
        }
        group.barrier();
      });
      EXPECT_LT(Clock::now() - begin, kLimit);
      for (const auto& result : results) {
        ASSERT_TRUE(result.error);
        EXPECT_THAT(result.error->code(), AnyOf(ErrorCode::kInvalid, ErrorCode::kAborted));
        EXPECT_THAT(result.error->what(), Says("mismatch.message", "float32", 101));
      }
      EXPECT_EQ(results[1].error->code(), ErrorCode::kInvalid);
    }
  }
}

TEST_P(MatchTest, a_large_send_without_a_receive_ends_at_the_deadline_on_every_rank) {
  const auto results = run([](ProcessGroup& group) {
    if (group.rank() == 0) {
      const std::vector<float> large(4 << 20);
      group.send(std::span(large), 1, 0, {.timeout = 300ms, .keep_alive = nullptr});
    }
    group.barrier();
  });
  EXPECT_EQ(results[0].error->code(), ErrorCode::kTimeout);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(
        result.error->what(),
        testing::ContainsRegex(
            "send of float32 x 4194304 to rank 1, tag 0 timed out after [0-9]+[.][0-9] s: "));
  }
}

// A small message is sent before any rank can know that it will not be received.
TEST_P(MatchTest, a_small_send_without_a_receive_is_a_warning_where_it_should_have_been_received) {
  for (const bool receiver_takes_others : {false, true}) {
    testing::internal::CaptureStderr();
    run_ranks_ok(world(),
                 [&](ProcessGroup& group) {
                   const auto data = floats(17);
                   auto other = floats(1);
                   if (group.rank() == 0) {
                     group.send(std::span(data), 1, 5);
                     if (receiver_takes_others) group.send(std::span(other), 1, 6);
                   }
                   if (group.rank() == 1 && receiver_takes_others) {
                     group.recv(std::span(other), 0, 6);
                   }
                   group.barrier();
                 },
                 {.transport = transport()});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                Says("group.unreceived_message", "world", "rank 1", "float32", 17, 0));
  }
}

TEST_P(MatchTest, a_receive_without_a_send_ends_at_the_deadline_on_every_rank) {
  const auto results = run([](ProcessGroup& group) {
    float value = 0;
    if (group.rank() == 1) {
      group.recv(std::span(&value, 1), 0, 3, {.timeout = 300ms, .keep_alive = nullptr});
    }
    group.barrier();
  });
  EXPECT_EQ(results[1].error->code(), ErrorCode::kTimeout);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->what(),
                testing::ContainsRegex(
                    "tag 3 timed out after [0-9]+[.][0-9] s: no message arrived from rank 0"));
  }
}

TEST_P(MatchTest, a_missing_rank_is_named_at_the_deadline_on_every_rank_and_hears_of_it_itself) {
  const auto results = run(
      [](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 0) {
          // Stays in the group without making a call until the other ranks have given up.
          group.recv(std::span<float>(), 1, 0, {.timeout = kNever, .keep_alive = nullptr});
        }
        all_reduce(group, 1000);
      },
      300ms);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_TRUE(results[rank].error);
    const Error& error = *results[rank].error;
    EXPECT_THAT(error.code(), AnyOf(ErrorCode::kTimeout, ErrorCode::kAborted));
    EXPECT_EQ(error.operation(), rank == 0 ? "recv" : "all_reduce") << error.what();
    EXPECT_EQ(error.group(), "world") << error.what();
    EXPECT_EQ(error.ranks(), std::vector{0}) << error.what();
    const auto deadline = error.code() == ErrorCode::kTimeout ? std::optional(300ms) : std::nullopt;
    EXPECT_EQ(error.deadline(), deadline) << error.what();
  }
}

TEST_P(MatchTest, one_call_too_many_names_the_rank_that_left) {
  const int odd = world() - 1;
  const auto begin = Clock::now();
  const auto results = run([&](ProcessGroup& group) {
    all_reduce(group, 1000);
    if (group.rank() == odd) all_reduce(group, 1000);
  });
  EXPECT_LT(Clock::now() - begin, kLimit);
  for (int rank = 0; rank < world(); ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    // A rank that is slow to finish the first call may learn of the failure of the second.
    if (rank != odd && !error) continue;
    ASSERT_TRUE(error) << "rank " << rank;
    EXPECT_THAT(error->code(), AnyOf(ErrorCode::kPeerLost, ErrorCode::kAborted));
    // Any of the other ranks may leave first. A slow rank may also learn that a rank left.
    EXPECT_THAT(error->ranks(),
                ElementsAre(rank == odd ? testing::Matcher<int>(testing::Ne(odd)) : testing::_))
        << error->what();
  }
}

TEST_P(MatchTest, after_an_error_every_call_says_the_first_cause) {
  run([&](ProcessGroup& group) {
    EXPECT_THROW(all_reduce(group, group.rank() == 0 ? 10 : 20), Error);
    try {
      group.barrier();
      ADD_FAILURE() << "a failed group went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("#1"));
    }
  });
}

TEST_P(MatchTest, abort_reaches_the_others_with_its_reason) {
  const auto results = run([&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) {
      group.abort(group.self() + ": the loss is not finite");  // the text of an error names it
      throw Error(ErrorCode::kInvalid, "own");
    }
    all_reduce(group, 100'000);
  });
  for (int rank = 0; rank < world(); ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error);
    if (rank == 1) continue;
    EXPECT_EQ(error->code(), ErrorCode::kAborted);
    EXPECT_EQ(error->ranks(), std::vector{1});
    EXPECT_THAT(error->what(), HasSubstr("rank 1: the loss is not finite"));
    EXPECT_THAT(error->what(), Not(HasSubstr("rank 1: rank 1")));
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, MatchTest, kSettings, setting_name);

TEST(Ending, a_group_whose_work_is_complete_may_be_destroyed_at_once) {
  for (int i = 0; i < 100; ++i) {
    harness::run_ranks_ok(4,
                          [](ProcessGroup& group) {
                            for (int call = 0; call < 10; ++call)
                              group.barrier({.async_op = true})->wait();
                          },
                          {.transport = TransportKind::kTcp});
  }
}

// The group's thread ends the second call while the group tells the thread to end.
TEST(Ending, a_group_with_an_unawaited_call_may_be_destroyed_at_any_moment) {
  std::vector<float> first(10), second(10);
  testing::internal::CaptureStderr();  // each causes a warning
  for (int i = 0; i < 2000; ++i) {
    harness::run_ranks_ok(1, [&](ProcessGroup& group) {
      const auto work = group.all_reduce(std::span(first), ReduceOp::kSum, {.async_op = true});
      group.all_reduce(std::span(second), ReduceOp::kSum, {.async_op = true});
      work->wait();
    });
  }
  testing::internal::GetCapturedStderr();
}

TEST(Ending, with_calls_under_way_names_them_in_one_warning_of_the_rank) {
  std::vector<float> data(10);
  testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) {
      // This rank stays until the other rank has left.
      EXPECT_THROW(group.recv(std::span<float>(), 0), Error);
      return;
    }
    group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
    group.broadcast(std::span(data), 0, {.async_op = true});
  });
  const auto text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, Says("group.destroyed_under_way", "rank 0", "world", "2 operations",
                         "all_reduce in group world, broadcast in group world"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Ending, after_a_failure_prints_no_warning) {
  std::vector<float> data(10);
  testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) {
      for (int i = 0; i < 100; ++i)
        group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
    }
    group.abort("the test says so");
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Arguments, are_checked_before_anything_is_sent) {
  run_ranks(2, [](ProcessGroup& group) {
    auto data = floats(10);
    const auto view = std::span(data);
    EXPECT_THROW(group.broadcast(view, 2), Error);
    EXPECT_THROW(group.broadcast(view, -1), Error);
    EXPECT_THROW(group.all_gather(view, view), Error);
    EXPECT_THROW(group.reduce_scatter(view, view), Error);
    EXPECT_THROW(group.all_reduce(Buffer(nullptr, 10, Dtype::kFloat32)), Error);
    EXPECT_THROW(group.all_reduce(view, ReduceOp::kBitAnd), Error);
    EXPECT_THROW(group.send(view, group.rank()), Error);
    EXPECT_THROW(group.send(view, 7), Error);
    EXPECT_THROW(group.all_to_all(view, view), Error);
    EXPECT_THROW(group.allocate_symmetric(0), Error);
    EXPECT_THROW(group.new_group({0, 0}), Error);
    std::vector<std::int32_t> integers(10);
    try {
      group.all_reduce(std::span(integers), ReduceOp::kMean);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
    group.all_reduce(view);  // the group still works
    EXPECT_EQ(data[0], 2.0f);
  });
}

// Such a buffer cannot exist, and a sum or product of its counts would wrap around to 0.
TEST(Arguments, beyond_any_memory_are_refused_on_every_rank) {
  constexpr std::size_t kWraps = (std::size_t{1} << 62) + 1;  // its float32 have 4 bytes mod 2^64
  constexpr std::size_t kHalf = std::size_t{1} << 63;
  for (const auto transport : {TransportKind::kLoopback, TransportKind::kTcp}) {
    harness::run_ranks_ok(
        2,
        [&](ProcessGroup& group) {
          std::vector<float> data(4);
          const auto refused = [&](const char* name, const auto& call) {
            expect_error(ErrorCode::kInvalid, {name, "more than memory can hold"}, call);
          };
          const Buffer wraps(data.data(), kWraps, Dtype::kFloat32);
          const Buffer half(data.data(), kHalf, Dtype::kUint8);
          const Buffer none(data.data(), 0, Dtype::kUint8);
          const std::vector<std::size_t> halves = {kHalf, kHalf};
          const int other = 1 - group.rank();
          refused("all_reduce of float32 x 4611686018427387905", [&] { group.all_reduce(wraps); });
          refused("broadcast", [&] { group.broadcast(wraps, 0); });
          refused("all_gather", [&] { group.all_gather(none, half); });
          refused("reduce_scatter", [&] { group.reduce_scatter(half, none); });
          refused("all_gather_v of uint8 x 2^64 and more",
                  [&] { group.all_gather_v(none, half, halves); });
          refused("reduce_scatter_v", [&] { group.reduce_scatter_v(half, none, halves); });
          refused("all_to_all_v", [&] { group.all_to_all_v(none, none, halves, halves); });
          refused("send", [&] { group.send(wraps, other); });
          refused("recv", [&] { group.recv(wraps, other); });
          refused("all_reduce", [&] {
            const std::vector<Buffer> list(2, Buffer(data.data(), kHalf / 4, Dtype::kUint8));
            group.all_reduce_coalesced(list);
          });
          group.barrier();
        },
        {.transport = transport});
  }
}

// The kernel's answer about this rank's memory is not valid for the peer.
TEST(Arguments, that_are_not_mapped_are_an_error_of_this_rank_over_sockets) {
  void* const hole = mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  const auto results = run_ranks(2,
                                 [&](ProcessGroup& group) {
                                   std::vector<float> data(1 << 18);
                                   if (group.rank() == 0) {
                                     group.broadcast(Buffer(hole, data.size(), Dtype::kFloat32), 0);
                                   } else {
                                     group.broadcast(std::span(data), 0);
                                     group.barrier();
                                   }
                                 },
                                 {.transport = TransportKind::kTcp});
  munmap(hole, 1 << 20);
  ASSERT_TRUE(results[0].error && results[1].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kSystem);
  EXPECT_EQ(results[0].error->operation(), "broadcast");
  EXPECT_THAT(results[0].error->what(), Says("call.unmapped_buffer", "rank 0", 1));
  EXPECT_EQ(results[1].error->code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace paceline
