// What happens when ranks do not mean the same thing: a typed error on every rank at once, never a
// wrong sum, never a hang. One table, over every transport, for 2, 3 and 4 ranks, with the first
// and the last rank as the odd one.

#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/collectives/backends/paceline/paceline_backend.h"
#include "paceline/store/memory_store.h"

#include "tests/harness/fetch_from.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/watchdog.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using testing::AnyOf;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The promise is one second. Nothing waits for the deadline, which is far behind it, but before the
// watchdog's: its error says who waits for whom.
constexpr auto kLimit = 10s;
constexpr auto kNever = 30s;

// How long after the last rank had come each rank heard of it.
class Noticed {
 public:
  static void add(TransportKind transport, Clock::duration took) {
    times()[std::string(name_of(transport))].push_back(
        std::chrono::duration<double, std::milli>(took).count());
  }
  static void print() {
    for (auto& [transport, all] : times()) {
      std::sort(all.begin(), all.end());
      const auto at = [&](double part) {
        return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
      };
      std::cout << "mismatches noticed over " << transport << " " << all.size() << " times: p50 "
                << at(0.5) << " ms, p99 " << at(0.99) << " ms, most " << all.back() << " ms\n";
    }
    times().clear();
  }

 private:
  static std::map<std::string, std::vector<double>>& times() {
    static std::map<std::string, std::vector<double>> all;
    return all;
  }
};

struct Mismatch {
  const char* name;
  void (*odd)(ProcessGroup& group);
  void (*even)(ProcessGroup& group);
};

std::vector<float> floats(std::size_t count) { return std::vector<float>(count, 1.0f); }

std::size_t world_of(const ProcessGroup& group) {
  return static_cast<std::size_t>(group.world_size());
}

void all_reduce(ProcessGroup& group, std::size_t count, ReduceOp op = ReduceOp::kSum) {
  auto data = floats(count);
  group.all_reduce(std::span(data), op);
}

// What is reduced in place must be held back as well.
void all_reduce_symmetric(ProcessGroup& group, std::size_t count, ReduceOp op = ReduceOp::kSum) {
  const auto memory = group.allocate_symmetric(4 << 20);
  group.all_reduce(memory.as<float>().first(count), op);
}

template <class T>
void all_reduce_of(ProcessGroup& group, std::size_t count) {
  std::vector<T> data(count, T(1));
  group.all_reduce(std::span(data));
}

void all_reduce_async(ProcessGroup& group, std::size_t count) {
  auto data = floats(count);
  group.all_reduce_async(std::span(data))->wait();
}

void broadcast(ProcessGroup& group, int root, std::size_t count = 1000) {
  auto data = floats(count);
  group.broadcast(std::span(data), root);
}

void broadcast_async(ProcessGroup& group, int root, std::size_t count = 1000) {
  auto data = floats(count);
  group.broadcast_async(std::span(data), root)->wait();
}

void reduce(ProcessGroup& group, int root, ReduceOp op = ReduceOp::kSum) {
  auto data = floats(1000);
  group.reduce(std::span(data), root, op);
}

void all_gather(ProcessGroup& group, std::size_t count) {
  const auto mine = floats(count);
  auto all = floats(count * world_of(group));
  group.all_gather(std::span(mine), std::span(all));
}

void gather(ProcessGroup& group, int root, std::size_t count = 1000) {
  const auto mine = floats(count);
  auto all = floats(count * world_of(group));
  group.gather(std::span(mine), group.rank() == root ? Buffer(std::span(all)) : Buffer(), root);
}

void scatter(ProcessGroup& group, int root, std::size_t count = 1000) {
  const auto all = floats(count * world_of(group));
  auto mine = floats(count);
  group.scatter(group.rank() == root ? ConstBuffer(std::span(all)) : ConstBuffer(), std::span(mine),
                root);
}

void reduce_scatter(ProcessGroup& group, std::size_t count, ReduceOp op = ReduceOp::kSum) {
  const auto all = floats(count * world_of(group));
  auto mine = floats(count);
  group.reduce_scatter(std::span(all), std::span(mine), op);
}

void all_to_all(ProcessGroup& group, std::size_t count) {
  const auto input = floats(count * world_of(group));
  auto output = floats(input.size());
  group.all_to_all(std::span(input), std::span(output));
}

using Group = ProcessGroup;

const Mismatch kMismatches[] = {
    {"count_smaller", [](Group& g) { all_reduce(g, 999); }, [](Group& g) { all_reduce(g, 1000); }},
    {"count_larger", [](Group& g) { all_reduce(g, 100'000); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"count_far_larger", [](Group& g) { all_reduce(g, 9'000'000); },
     [](Group& g) { all_reduce(g, 10); }},
    {"count_zero", [](Group& g) { all_reduce(g, 0); }, [](Group& g) { all_reduce(g, 1); }},
    {"count_of_many_pieces", [](Group& g) { all_reduce(g, 700'001); },
     [](Group& g) { all_reduce(g, 700'000); }},
    {"count_symmetric", [](Group& g) { all_reduce_symmetric(g, 900'000); },
     [](Group& g) { all_reduce_symmetric(g, 900'001); }},
    {"type_of_same_size", [](Group& g) { all_reduce_of<std::int32_t>(g, 1000); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"type_of_other_size", [](Group& g) { all_reduce_of<double>(g, 1000); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"type_with_the_same_bytes", [](Group& g) { all_reduce_of<double>(g, 500); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"sum_and_product", [](Group& g) { all_reduce(g, 1000, ReduceOp::kProduct); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"sum_and_mean", [](Group& g) { all_reduce(g, 1000, ReduceOp::kMean); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"sum_and_max_large", [](Group& g) { all_reduce(g, 300'000, ReduceOp::kMax); },
     [](Group& g) { all_reduce(g, 300'000); }},
    {"sum_and_max_symmetric", [](Group& g) { all_reduce_symmetric(g, 300'000, ReduceOp::kMax); },
     [](Group& g) { all_reduce_symmetric(g, 300'000); }},
    {"reductions_of_reduce", [](Group& g) { reduce(g, 0, ReduceOp::kMin); },
     [](Group& g) { reduce(g, 0); }},
    {"reductions_of_reduce_scatter", [](Group& g) { reduce_scatter(g, 10, ReduceOp::kMax); },
     [](Group& g) { reduce_scatter(g, 10); }},
    {"root_of_broadcast", [](Group& g) { broadcast(g, 1); }, [](Group& g) { broadcast(g, 0); }},
    {"root_of_reduce", [](Group& g) { reduce(g, 1); }, [](Group& g) { reduce(g, 0); }},
    {"root_of_gather", [](Group& g) { gather(g, 1); }, [](Group& g) { gather(g, 0); }},
    {"root_of_scatter", [](Group& g) { scatter(g, 1); }, [](Group& g) { scatter(g, 0); }},
    {"kind", [](Group& g) { broadcast(g, 0); }, [](Group& g) { all_reduce(g, 1000); }},
    {"reduce_and_all_reduce", [](Group& g) { reduce(g, 0); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"all_gather_and_all_to_all", [](Group& g) { all_gather(g, 100); },
     [](Group& g) { all_to_all(g, 100); }},
    {"barrier_and_all_reduce", [](Group& g) { g.barrier(); },
     [](Group& g) { all_reduce(g, 50'000); }},
    {"allocation_and_sum", [](Group& g) { g.allocate_symmetric(1000); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"order",
     [](Group& g) {
       broadcast(g, 0);
       all_reduce(g, 1000);
     },
     [](Group& g) {
       all_reduce(g, 1000);
       broadcast(g, 0);
     }},
    {"order_of_async",
     [](Group& g) {
       auto data = floats(1000);
       const auto first = g.broadcast_async(std::span(data), 0);
       const auto second = g.all_reduce_async(std::span(data));
       first->wait();
       second->wait();
     },
     [](Group& g) {
       auto data = floats(1000);
       const auto first = g.all_reduce_async(std::span(data));
       const auto second = g.broadcast_async(std::span(data), 0);
       first->wait();
       second->wait();
     }},
    {"one_call_too_many",
     [](Group& g) {
       all_reduce(g, 1000);
       all_reduce(g, 1000);
     },
     [](Group& g) { g.barrier(); }},
    {"allocation_sizes", [](Group& g) { g.allocate_symmetric(1 << 20); },
     [](Group& g) { g.allocate_symmetric(1 << 21); }},
    {"all_gather_counts", [](Group& g) { all_gather(g, 11); }, [](Group& g) { all_gather(g, 10); }},
    {"all_gather_counts_large", [](Group& g) { all_gather(g, 200'000); },
     [](Group& g) { all_gather(g, 200'001); }},
    {"all_to_all_counts", [](Group& g) { all_to_all(g, 9); }, [](Group& g) { all_to_all(g, 10); }},
    {"all_to_all_counts_large", [](Group& g) { all_to_all(g, 200'001); },
     [](Group& g) { all_to_all(g, 200'000); }},
    {"reduce_scatter_counts", [](Group& g) { reduce_scatter(g, 11); },
     [](Group& g) { reduce_scatter(g, 10); }},
    {"gather_counts", [](Group& g) { gather(g, 0, 11); }, [](Group& g) { gather(g, 0, 10); }},
    {"scatter_counts", [](Group& g) { scatter(g, 0, 11); }, [](Group& g) { scatter(g, 0, 10); }},
    {"broadcast_counts", [](Group& g) { broadcast(g, 0, 70'000); },
     [](Group& g) { broadcast(g, 0, 70'001); }},
    {"async_of_other_size", [](Group& g) { all_reduce_async(g, 10); },
     [](Group& g) { all_reduce(g, 1000); }},
    {"async_of_another_kind", [](Group& g) { broadcast_async(g, 0); },
     [](Group& g) { all_reduce(g, 1000); }},
};

// One rank calls what is odd, the others what is even.
void expect_noticed(const Mismatch& mismatch, int world, int odd,
                    harness::ThreadRanksOptions options) {
  SCOPED_TRACE(std::string(mismatch.name) + ", rank " + std::to_string(odd));
  std::vector<Clock::time_point> called(static_cast<std::size_t>(world));
  std::vector<Clock::time_point> heard(called.size());
  options.group_timeout = kNever;
  const auto results = run_ranks(
      world,
      [&](ProcessGroup& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        all_reduce(group, 10);
        called[rank] = Clock::now();
        try {
          (group.rank() == odd ? mismatch.odd : mismatch.even)(group);
        } catch (const Error&) {
          heard[rank] = Clock::now();
          throw;
        }
        ADD_FAILURE() << "rank " << rank << " noticed nothing";
      },
      options);
  const auto last_called = *std::max_element(called.begin(), called.end());
  bool somebody_compared = false;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto& error = results[rank].error;
    ASSERT_TRUE(error) << "rank " << rank;
    EXPECT_THAT(error->code(), AnyOf(ErrorCode::kInvalid, ErrorCode::kAborted)) << error->what();
    // The cause with both sides, also where another rank found it.
    EXPECT_THAT(error->what(),
                HasSubstr("collectives do not match in group world: this rank called"));
    EXPECT_THAT(error->what(), HasSubstr(") called "));
    somebody_compared |= error->code() == ErrorCode::kInvalid;
    EXPECT_LT(heard[rank] - last_called, kLimit) << error->what();
    Noticed::add(options.transport, std::max(heard[rank] - last_called, Clock::duration(0)));
  }
  EXPECT_TRUE(somebody_compared);
}

class MismatchTest : public testing::TestWithParam<std::tuple<Mismatch, TransportKind, int>> {
 protected:
  void run(int odd) {
    const auto& [mismatch, transport, world] = GetParam();
    expect_noticed(mismatch, world, odd, {.transport = transport});
  }
  static void TearDownTestSuite() { Noticed::print(); }
};

TEST_P(MismatchTest, is_a_typed_error_on_every_rank_at_once) {
  run(std::get<int>(GetParam()) - 1);
  run(0);
}

std::string case_name(const testing::TestParamInfo<MismatchTest::ParamType>& info) {
  const auto& [mismatch, transport, world] = info.param;
  return std::string(mismatch.name) + "_" + std::string(name_of(transport)) + "_" +
         std::to_string(world);
}

const auto kTransports =
    testing::Values(TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp);

INSTANTIATE_TEST_SUITE_P(Matrix, MismatchTest,
                         testing::Combine(testing::ValuesIn(kMismatches), kTransports,
                                          testing::Values(2, 3, 4)),
                         case_name);

// Wherever the algorithm serves; the first and the last rank in turns.
class AlgorithmMismatchTest : public testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  static void TearDownTestSuite() { Noticed::print(); }
};

TEST_P(AlgorithmMismatchTest, is_a_typed_error_on_every_rank_at_once) {
  const auto [algorithm, world] = GetParam();
  int odd = 0;
  for (const Mismatch& mismatch : kMismatches) {
    std::cout << mismatch.name << std::endl;  // which one, should a watchdog end it
    harness::ThreadRanksOptions options{.transport = TransportKind::kTcp};
    options.adjust = [algorithm = algorithm](int /*rank*/, GroupOptions& group) {
      group.algorithm = algorithm;
      group.allows_any_order = true;
    };
    expect_noticed(mismatch, world, odd, options);
    odd = world - 1 - odd;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, AlgorithmMismatchTest,
                         testing::Combine(testing::ValuesIn(kAllAlgorithms),
                                          testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// ---- what the calls of a group cannot get wrong by themselves

using Setting = std::tuple<TransportKind, int>;

std::string setting_name(const testing::TestParamInfo<Setting>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

const auto kSettings = testing::Combine(kTransports, testing::Values(2, 3, 4));

// Ranks whose collectives carry another group or generation than those of the last rank, over a
// mesh that took them for one: fingerprints are the second wall, behind the handshake.
class ForeignTest : public testing::TestWithParam<Setting> {
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
        connect.transport = transport;
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
      EXPECT_THAT(error->what(), HasSubstr("of another group or generation"));
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

class MatchTest : public testing::TestWithParam<Setting> {
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
    EXPECT_THAT(result.error->what(), HasSubstr("group world.0 does not match: this rank means"));
  }
}

// Which of two groups comes first cannot be compared: only the deadline ends the wait.
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
    EXPECT_THAT(result.error->what(), HasSubstr("all_reduce #1"));
  }
}

TEST_P(MatchTest, async_against_blocking_is_no_mismatch) {
  run_ranks_ok(world(),
               [](ProcessGroup& group) {
                 for (int i = 0; i < 10; ++i) {
                   auto data = floats(5000);
                   if ((group.rank() + i) % 2 == 0) {
                     group.all_reduce(std::span(data));
                   } else {
                     group.all_reduce_async(std::span(data))->wait();
                   }
                   ASSERT_EQ(data[4999], static_cast<float>(group.world_size()));
                 }
               },
               {.transport = transport()});
}

// The other ranks wait in a barrier for the two that talk past each other.
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
          if (sent_before) group.recv(std::span(data), 0, 7);  // the first one is here by now
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
        EXPECT_THAT(result.error->what(), HasSubstr("sent float32 x 101 with that tag"));
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
    EXPECT_THAT(result.error->what(),
                HasSubstr("send of float32 x 4194304, peer 1, tag 0 timed out"));
  }
}

// A small one is on its way before anybody can know.
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
                HasSubstr("group world ends on rank 1, and nobody has received float32 x 17 that "
                          "rank 0 ("));
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
    EXPECT_THAT(result.error->what(), HasSubstr("tag 3 timed out: nothing came from rank 0"));
  }
}

TEST_P(MatchTest, a_missing_rank_is_named_at_the_deadline_on_every_rank_and_hears_of_it_itself) {
  const auto results = run(
      [](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 0) {
          // Stays in the group without calling, until the others have given up.
          group.recv(std::span<float>(), 1, 0, {.timeout = kNever, .keep_alive = nullptr});
        }
        all_reduce(group, 1000);
      },
      300ms);
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_THAT(result.error->code(), AnyOf(ErrorCode::kTimeout, ErrorCode::kAborted));
    EXPECT_THAT(result.error->what(), HasSubstr("all_reduce #2"));
    EXPECT_THAT(result.error->what(), HasSubstr("rank 0 ("));
  }
}

TEST_P(MatchTest, one_call_too_many_says_who_left) {
  const int odd = world() - 1;
  const auto begin = Clock::now();
  const auto results = run([&](ProcessGroup& group) {
    all_reduce(group, 1000);
    if (group.rank() == odd) all_reduce(group, 1000);
  });
  EXPECT_LT(Clock::now() - begin, kLimit);
  for (int rank = 0; rank < world(); ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    // A rank that is slow to finish the first call may hear of the failure of the second.
    if (rank != odd && !error) continue;
    ASSERT_TRUE(error) << "rank " << rank;
    EXPECT_THAT(error->code(), AnyOf(ErrorCode::kPeerLost, ErrorCode::kAborted));
    EXPECT_THAT(error->what(), HasSubstr("has left the group"));
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
      group.abort("the loss is not finite");
      throw Error(ErrorCode::kInvalid, "own");
    }
    all_reduce(group, 100'000);
  });
  for (int rank = 0; rank < world(); ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error);
    if (rank == 1) continue;
    EXPECT_EQ(error->code(), ErrorCode::kAborted);
    EXPECT_THAT(error->what(), HasSubstr("the loss is not finite"));
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, MatchTest, kSettings, setting_name);

TEST(Ending, a_group_whose_work_is_complete_may_be_destroyed_at_once) {
  for (int i = 0; i < 100; ++i) {
    harness::run_ranks_ok(4,
                          [](ProcessGroup& group) {
                            for (int call = 0; call < 10; ++call) group.barrier_async()->wait();
                          },
                          {.transport = TransportKind::kTcp});
  }
}

// The group's thread ends the second call while the group asks it to end.
TEST(Ending, a_group_with_a_call_nobody_waited_for_may_be_destroyed_at_any_moment) {
  std::vector<float> first(10), second(10);
  for (int i = 0; i < 2000; ++i) {
    harness::run_ranks_ok(1, [&](ProcessGroup& group) {
      const auto work = group.all_reduce_async(std::span(first));
      group.all_reduce_async(std::span(second));
      work->wait();
    });
  }
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
    group.all_reduce(view);  // the group is as good as before
    EXPECT_EQ(data[0], 2.0f);
  });
}

}  // namespace
}  // namespace paceline
