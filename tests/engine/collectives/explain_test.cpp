// The explanation of flight records. Each case is a set of records that a job could have left.

#include "paceline/engine/collectives/flight/explain.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/collective.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kBegin = 1000 * kSecond;

// The flight file of one rank, written step by step. Times are in seconds since the job began.
class Rank {
 public:
  explicit Rank(int rank, int world_size = 4) {
    flight_.rank = rank;
    flight_.world_size = world_size;
    flight_.pid = 700 + rank;
    flight_.host = "box";
    flight_.boot = "b";
    flight_.process = FlightProcess::kRunning;
    flight_.opened = kBegin;
    flight_.now = kBegin + 60 * kSecond;
    group(0, "world", rank, world_size);
  }

  Rank& group(std::uint32_t number, const std::string& name, int rank, int world_size) {
    flight_.groups.push_back({number, std::hash<std::string>()(name), name, rank, world_size, 0});
    return *this;
  }
  Rank& in_group(std::uint32_t number) {
    group_ = number;
    return *this;
  }
  // Adds a call that began at `begin`.
  Rank& call(Op op, std::uint32_t sequence, double begin, std::uint64_t count = 1000) {
    FlightOperation operation;
    operation.id = flight_.operations.size() + 1;
    operation.call.op = static_cast<std::uint8_t>(op);
    operation.call.dtype = Dtype::kFloat32;
    operation.call.count = count;
    operation.call.group = group_;
    operation.call.group_hash = flight_.groups[group_].hash;
    operation.sequence = sequence;
    operation.entered = operation.started = kBegin + nanoseconds(begin);
    operation.entered_wall = static_cast<std::int64_t>(operation.entered);
    flight_.operations.push_back(operation);
    return *this;
  }
  Rank& message(Op op, int peer, double begin, std::uint64_t count = 10) {
    call(op, 0, begin, count);
    flight_.operations.back().call.peer = peer;
    return *this;
  }
  Rank& done(double end = 0) {
    flight_.operations.back().state = FlightState::kDone;
    flight_.operations.back().ended =
        end > 0 ? kBegin + nanoseconds(end) : flight_.operations.back().entered + 1000;
    return *this;
  }
  Rank& failed(double end, ErrorCode code, const std::string& text = "") {
    flight_.operations.back().state = FlightState::kFailed;
    flight_.operations.back().error = code;
    flight_.operations.back().ended = kBegin + nanoseconds(end);
    flight_.failure = text;
    return *this;
  }
  Rank& finished(Op op, std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t i = first; i <= last; ++i) call(op, i, i * 0.001).done();
    return *this;
  }
  Rank& process(FlightProcess process) {
    flight_.process = process;
    return *this;
  }
  Rank& end(FlightEnd end, const std::string& failure = "") {
    flight_.end = end;
    flight_.process = FlightProcess::kGone;
    if (!failure.empty()) flight_.failure = failure;
    return *this;
  }
  FlightOperation& last() { return flight_.operations.back(); }
  operator Flight() const { return flight_; }  // NOLINT: the conversion is the point

 private:
  static std::uint64_t nanoseconds(double seconds) {
    return static_cast<std::uint64_t>(seconds * 1e9 + 0.5);
  }
  Flight flight_;
  std::uint32_t group_ = 0;
};

Explanation explain_all(const std::vector<Flight>& flights) { return explain(flights); }

TEST(Explain, a_rank_that_never_entered) {
  std::vector<Flight> flights;
  for (const int rank : {0, 1, 2}) {
    flights.push_back(
        Rank(rank).finished(Op::kBroadcast, 1041, 1041).call(Op::kAllReduce, 1042, 28.8, 2097152));
  }
  flights.push_back(Rank(3).finished(Op::kBroadcast, 1041, 1041));
  const auto found = explain(flights);
  EXPECT_EQ(found.sentence,
            "rank 3 never entered all_reduce #1042 (float32 x 2097152, sum, group world); it last "
            "finished broadcast #1041; ranks 0-2 have been waiting for 31.2 s");
  EXPECT_EQ(found.verdict, Verdict::kNeverEntered);
  EXPECT_THAT(found.ranks, ElementsAre(3));
  EXPECT_EQ(found.group, "world");
  EXPECT_EQ(found.sequence, 1042u);
  EXPECT_NEAR(found.waited_seconds, 31.2, 1e-6);
}

TEST(Explain, says_how_a_missing_rank_ended_or_where_it_is) {
  const auto with = [](Rank missing) {
    return explain_all({Rank(0, 2).finished(Op::kBarrier, 1, 1).call(Op::kAllReduce, 2, 50),
                        std::move(missing)})
        .sentence;
  };
  const Rank base = Rank(1, 2).finished(Op::kBarrier, 1, 1);
  EXPECT_THAT(with(base), Says("explain.missing_rank_waited_for", "barrier #1", 0, "10.0 s"));
  EXPECT_THAT(with(Rank(1, 2)), Says("explain.missing_rank_finished_nothing"));
  EXPECT_THAT(with(Rank(base).process(FlightProcess::kStopped)),
              Says("explain.missing_rank_stopped", "barrier #1"));
  EXPECT_THAT(with(Rank(base).end(FlightEnd::kInOrder)),
              Says("explain.missing_rank_left", "barrier #1"));
  EXPECT_THAT(with(Rank(base).end(FlightEnd::kException)),
              Says("explain.missing_rank_threw", "barrier #1"));
  EXPECT_THAT(with(Rank(base).end(FlightEnd::kFailed, "rank 1: not finite")),
              Says("explain.missing_rank_failed", "barrier #1", "rank 1: not finite"));
  EXPECT_THAT(with(Rank(base).message(Op::kReceive, 0, 40)),
              Says("explain.missing_rank_elsewhere", "barrier #1",
                   "recv (float32 x 10, from rank 0, tag 0, group world)", "20.0 s"));
}

TEST(Explain, a_receive_that_was_posted_ahead_is_not_where_a_rank_is) {
  Rank missing(1, 2);
  missing.finished(Op::kBarrier, 1, 1).message(Op::kReceive, 0, 1);
  missing.last().call.asynchronous = true;
  const auto found =
      explain_all({Rank(0, 2).finished(Op::kBarrier, 1, 1).call(Op::kAllReduce, 2, 50), missing});
  EXPECT_THAT(found.sentence, Says("explain.missing_rank_waited_for", "barrier #1", 0));
}

TEST(Explain, several_ranks_that_never_entered) {
  const auto found = explain_all({Rank(0).call(Op::kBarrier, 1, 59), Rank(1), Rank(2), Rank(3)});
  EXPECT_EQ(found.sentence,
            "ranks 1-3 never entered barrier #1 (group world); rank 1 had finished nothing before; "
            "rank 2 had finished nothing before; rank 3 had finished nothing before; rank 0 has "
            "been waiting for 1.0 s");
}

TEST(Explain, a_time_out_tells_the_same_as_a_wait) {
  const auto timed_out = [](int rank) {
    return Rank(rank, 3)
        .finished(Op::kAllReduce, 1, 4)
        .call(Op::kAllReduce, 5, 10)
        .failed(12.5, ErrorCode::kTimeout, "timed out")
        .call(Op::kBarrier, 6, 13)
        .failed(13, ErrorCode::kTimeout, "timed out");
  };
  const auto found =
      explain_all({timed_out(0), timed_out(1), Rank(2, 3).finished(Op::kAllReduce, 1, 4)});
  EXPECT_EQ(found.sentence,
            "rank 2 never entered all_reduce #5 (float32 x 1000, sum, group world); it last "
            "finished all_reduce #4; ranks 0, 1 waited 2.5 s");
}

TEST(Explain, a_failure_that_the_group_survived_explains_no_later_wait) {
  const auto after_it = [](int rank) {
    return Rank(rank, 2)
        .finished(Op::kBarrier, 1, 3)
        .call(Op::kAllocate, 4, 1)
        .failed(1.1, ErrorCode::kSystem, "rank 0 could not get its part")
        .call(Op::kBarrier, 5, 2)
        .done(2.1);
  };
  EXPECT_EQ(explain_all({after_it(0).call(Op::kBarrier, 6, 50), after_it(1)}).sentence,
            "rank 1 never entered barrier #6 (group world); it last finished barrier #5; rank 0 "
            "has been waiting for 10.0 s");
  EXPECT_EQ(explain_all({after_it(0), after_it(1)}).verdict, Verdict::kFinished);
}

TEST(Explain, a_group_that_failed_and_was_left_explains_no_later_wait_in_another) {
  const auto after_it = [](int rank) {
    return Rank(rank, 2)
        .group(1, "world.0", rank, 2)
        .finished(Op::kBarrier, 1, 1)
        .in_group(1)
        .call(Op::kBarrier, 1, 1 + rank)
        .failed(2, rank == 0 ? ErrorCode::kTimeout : ErrorCode::kAborted, "world.0 timed out")
        .in_group(0)
        .call(Op::kBarrier, 2, 10)
        .done(10.1);
  };
  EXPECT_EQ(explain_all({after_it(0).call(Op::kBarrier, 3, 50), after_it(1)}).sentence,
            "rank 1 never entered barrier #3 (group world); it last finished barrier #2; rank 0 "
            "has been waiting for 10.0 s");
  EXPECT_EQ(explain_all({after_it(0).call(Op::kBarrier, 3, 50),
                         Rank(after_it(1)).process(FlightProcess::kGone)})
                .verdict,
            Verdict::kDied);
  EXPECT_EQ(explain_all({after_it(0), after_it(1)}).verdict, Verdict::kFinished);
}

TEST(Explain, the_group_that_is_asked_for_comes_first) {
  const std::vector<Flight> flights = {Rank(0, 2)
                                           .group(1, "world.0", 0, 2)
                                           .call(Op::kBarrier, 1, 1)
                                           .in_group(1)
                                           .call(Op::kAllReduce, 1, 2),
                                       Rank(1, 2).group(1, "world.0", 1, 2)};
  EXPECT_EQ(explain(flights).group, "world");
  EXPECT_EQ(explain(flights, "world.0").group, "world.0");
}

// A failed group refuses all later calls.
TEST(Explain, calls_that_a_failed_group_refused_do_not_hide_the_failure) {
  const auto waits = [](int rank) {
    return Rank(rank, 3)
        .message(Op::kReceive, 2, 1 + rank)
        .failed(4, ErrorCode::kTimeout, fmt::format("rank {}: recv timed out", rank))
        .call(Op::kBarrier, 1, 4.1)
        .failed(4.1, ErrorCode::kTimeout);
  };
  const auto refused = [&](int rank) {
    Flight flight = waits(rank);
    flight.failure = fmt::format("rank {}: recv timed out", rank);
    return flight;
  };
  EXPECT_EQ(
      explain_all({refused(0), refused(1), Rank(2, 3).process(FlightProcess::kStopped)}).sentence,
      "rank 0 failed in recv (float32 x 10, from rank 2, tag 0, group world) after 3.0 s: "
      "rank 0: recv timed out; rank 2 had finished nothing before and is stopped");
}

TEST(Explain, ranks_that_called_different_things) {
  std::vector<Flight> flights;
  for (const int rank : {0, 1, 3}) {
    flights.push_back(Rank(rank)
                          .finished(Op::kBarrier, 1, 1)
                          .call(Op::kAllReduce, 2, 1)
                          .failed(1.1, ErrorCode::kInvalid, "do not match"));
  }
  flights.push_back(Rank(2)
                        .finished(Op::kBarrier, 1, 1)
                        .call(Op::kBroadcast, 2, 1, 999)
                        .failed(1.1, ErrorCode::kAborted, "aborted"));
  const auto found = explain(flights);
  EXPECT_EQ(found.verdict, Verdict::kMismatch);
  EXPECT_THAT(found.ranks, ElementsAre(2));
  EXPECT_EQ(found.sentence,
            "ranks called different operations as #2 of group world: ranks 0, 1, 3 called "
            "all_reduce (float32 x 1000, sum); rank 2 called broadcast (float32 x 999, root 0)");
}

TEST(Explain, every_part_of_a_call_that_must_agree_is_compared) {
  const auto differ = [](Op op, auto change) {
    Rank odd = Rank(1, 2).call(op, 1, 1);
    change(odd.last().call);
    return explain_all({Rank(0, 2).call(op, 1, 1), odd}).verdict == Verdict::kMismatch;
  };
  EXPECT_TRUE(differ(Op::kAllReduce, [](auto& call) { call.count = 1; }));
  EXPECT_TRUE(differ(Op::kAllReduce, [](auto& call) { call.dtype = Dtype::kInt32; }));
  EXPECT_TRUE(differ(Op::kAllReduce, [](auto& call) { call.reduce_op = 2; }));
  EXPECT_TRUE(differ(Op::kBroadcast, [](auto& call) { call.peer = 1; }));
  EXPECT_FALSE(differ(Op::kBroadcast, [](auto& call) { call.reduce_op = 2; }));
  EXPECT_FALSE(differ(Op::kAllReduce, [](auto& call) { call.peer = 1; }));
  EXPECT_FALSE(differ(Op::kAllReduce, [](auto& call) { call.asynchronous = true; }));
  EXPECT_FALSE(differ(Op::kBarrier, [](auto& call) { call.count = 1; }));
}

TEST(Explain, a_rank_that_died_in_an_operation) {
  const auto survivor = [](int rank) {
    return Rank(rank, 3)
        .finished(Op::kBroadcast, 1, 6)
        .call(Op::kAllReduce, 7, 1)
        .failed(1.5, ErrorCode::kPeerLost, "rank 2 is gone");
  };
  const auto found = explain_all({survivor(0), survivor(1),
                                  Rank(2, 3)
                                      .finished(Op::kBroadcast, 1, 6)
                                      .call(Op::kAllReduce, 7, 1)
                                      .process(FlightProcess::kGone)});
  EXPECT_EQ(found.verdict, Verdict::kDied);
  EXPECT_THAT(found.ranks, ElementsAre(2));
  EXPECT_EQ(found.sentence,
            "rank 2 (pid 702 on box) died in all_reduce #7 (float32 x 1000, sum, group world); it "
            "last finished broadcast #6; ranks 0, 1 waited 0.5 s in all_reduce #7");
}

TEST(Explain, a_rank_that_died_outside_of_any_operation) {
  const auto found =
      explain_all({Rank(0, 2).finished(Op::kBroadcast, 1, 6).call(Op::kAllReduce, 7, 58),
                   Rank(1, 2).finished(Op::kBroadcast, 1, 6).process(FlightProcess::kGone)});
  EXPECT_EQ(found.sentence,
            "rank 1 (pid 701 on box) died outside of any operation; it last finished broadcast #6; "
            "rank 0 has been waiting for 2.0 s in all_reduce #7");
  const auto alone =
      explain_all({Rank(0, 2).finished(Op::kBarrier, 1, 1),
                   Rank(1, 2).finished(Op::kBarrier, 1, 1).process(FlightProcess::kGone)});
  EXPECT_EQ(alone.verdict, Verdict::kDied);
  EXPECT_EQ(alone.sentence,
            "rank 1 ended outside of any operation, after barrier "
            "#1 (group world)");
}

TEST(Explain, a_rank_whose_exit_code_is_known_did_not_die) {
  const auto ended = [](int code) {
    Flight flight = Rank(1, 2).finished(Op::kBroadcast, 1, 6).process(FlightProcess::kGone);
    flight.exit_code = code;
    return flight;
  };
  const Flight waits = Rank(0, 2).finished(Op::kBroadcast, 1, 6).call(Op::kAllReduce, 7, 58);
  EXPECT_EQ(explain_all({waits, ended(0)}).sentence,
            "rank 1 (pid 701 on box) ended with exit code 0 outside of any operation; it last "
            "finished broadcast #6; rank 0 has been waiting for 2.0 s in all_reduce #7");
  const Flight done = Rank(0, 2).finished(Op::kBroadcast, 1, 6);
  EXPECT_EQ(explain_all({done, ended(0)}).verdict, Verdict::kFinished);
  EXPECT_EQ(explain_all({done, ended(3)}).verdict, Verdict::kDied);
}

// The records after `kill -9` of all hanging ranks: they do not tell which rank died first, but
// they do tell which one had not arrived.
TEST(Explain, a_job_that_was_killed_as_a_whole_names_the_rank_that_was_missing) {
  const auto found =
      explain_all({Rank(0, 2).call(Op::kAllReduce, 1, 5).process(FlightProcess::kGone),
                   Rank(1, 2).process(FlightProcess::kGone)});
  EXPECT_EQ(found.verdict, Verdict::kNeverEntered);
  EXPECT_EQ(found.sentence,
            "rank 1 never entered all_reduce #1 (float32 x 1000, sum, group world); it had "
            "finished nothing before and its process is gone; rank 0 waited for it until the end");
}

TEST(Explain, a_rank_that_the_launcher_ended_after_the_others_timed_out_did_not_die_first) {
  const auto found = explain_all(
      {Rank(0, 2).call(Op::kAllReduce, 1, 5).failed(6, ErrorCode::kTimeout, "timed out"),
       Rank(1, 2).process(FlightProcess::kGone)});
  EXPECT_EQ(found.verdict, Verdict::kNeverEntered);
  EXPECT_THAT(found.sentence, Says("explain.missing_rank_gone", "rank 0", "1.0 s"));
}

TEST(Explain, a_stopped_rank_inside_an_operation) {
  const auto found =
      explain_all({Rank(0, 2).call(Op::kAllReduce, 1, 5),
                   Rank(1, 2).call(Op::kAllReduce, 1, 5).process(FlightProcess::kStopped)});
  EXPECT_EQ(found.verdict, Verdict::kStuck);
  EXPECT_THAT(found.ranks, ElementsAre(1));
  EXPECT_EQ(found.sentence,
            "rank 1 is stopped in all_reduce #1 (float32 x 1000, sum, group world); rank 0 has "
            "been waiting for 55.0 s");
}

TEST(Explain, all_came_and_some_finished) {
  EXPECT_EQ(explain_all({Rank(0, 2).call(Op::kAllReduce, 1, 5).done(5.1),
                         Rank(1, 2).call(Op::kAllReduce, 1, 59.5)})
                .sentence,
            "rank 0 finished all_reduce #1 (float32 x 1000, sum, group world), rank 1 did not; "
            "rank 1 has been waiting for 0.5 s");
  EXPECT_EQ(
      explain_all({Rank(0, 2).call(Op::kBarrier, 1, 50), Rank(1, 2).call(Op::kBarrier, 1, 55)})
          .sentence,
      "all 2 ranks entered barrier #1 (group world), and none finished it; ranks 0, 1 have been "
      "waiting for 10.0 s");
}

TEST(Explain, two_groups_that_wait_for_each_other) {
  const auto member = [](int rank) { return Rank(rank, 2).group(1, "world.0", rank, 2); };
  const auto found = explain_all(
      {member(0).call(Op::kAllReduce, 1, 1), member(1).in_group(1).call(Op::kBroadcast, 1, 2)});
  EXPECT_EQ(found.verdict, Verdict::kCrossed);
  EXPECT_EQ(found.sentence,
            "ranks wait for each other in different groups: rank 0 in all_reduce #1 (float32 x "
            "1000, sum, group world), rank 1 in broadcast #1 (float32 x 1000, root 0, group "
            "world.0); every rank must use its groups in the same order");
}

// Rank 1 was killed while its checkpoint's thread was in another group.
TEST(Explain, a_rank_that_died_in_another_group_did_not_use_its_groups_in_another_order) {
  const auto member = [](int rank) { return Rank(rank, 2).group(1, "world.0", rank, 2); };
  const auto found =
      explain_all({member(0).call(Op::kAllReduce, 1, 1),
                   member(1).in_group(1).call(Op::kBroadcast, 1, 2).process(FlightProcess::kGone)});
  EXPECT_EQ(found.verdict, Verdict::kDied);
  EXPECT_THAT(found.ranks, ElementsAre(1));
  EXPECT_THAT(found.sentence, HasSubstr("died in broadcast #1"));
}

// The launcher ends the ranks of a job that hangs, all of them or those that have not timed out.
TEST(Explain, two_groups_that_waited_for_each_other_until_the_launcher_ended_the_ranks) {
  const auto member = [](int rank) { return Rank(rank, 2).group(1, "world.0", rank, 2); };
  const auto first = member(0).call(Op::kAllReduce, 1, 1);
  const auto second =
      member(1).in_group(1).call(Op::kBroadcast, 1, 2).process(FlightProcess::kGone);
  EXPECT_EQ(explain_all({Rank(first).process(FlightProcess::kGone), second}).verdict,
            Verdict::kCrossed);
  EXPECT_EQ(explain_all({Rank(first).failed(55, ErrorCode::kTimeout, "timed out"), second}).verdict,
            Verdict::kCrossed);
}

// All numbers of ranks in an explanation are those of the world.
TEST(Explain, roots_and_peers_in_a_group_of_others_are_ranks_of_the_world) {
  const auto member = [](int rank) {
    return Rank(rank, 4).group(1, "world.0", rank / 2, 2).in_group(1);
  };
  EXPECT_THAT(explain_all({Rank(0, 4), member(1).call(Op::kBroadcast, 1, 1), Rank(2, 4), member(3)})
                  .sentence,
              HasSubstr("broadcast #1 (float32 x 1000, root 1, group world.0)"));
  EXPECT_THAT(
      explain_all({Rank(0, 4), member(1).message(Op::kReceive, 1, 1), Rank(2, 4), member(3)})
          .sentence,
      Says("explain.message_awaited", 1, "recv (float32 x 10, from rank 3, tag 0, group world.0)"));
}

TEST(Explain, a_circle_of_groups_is_told_in_full) {
  // Rank r is in the group with the next rank, and has not arrived in the group with the previous
  // rank.
  const auto rank = [](int r) {
    return Rank(r, 3)
        .group(1, "world.a" + std::to_string(r), 0, 2)
        .group(2, "world.a" + std::to_string((r + 2) % 3), 1, 2)
        .in_group(1)
        .call(Op::kAllReduce, 1, 1 + r);
  };
  const auto found = explain_all({rank(0), rank(1), rank(2)});
  EXPECT_EQ(found.verdict, Verdict::kCrossed);
  for (int r = 0; r < 3; ++r) {
    const std::string number = std::to_string(r);
    EXPECT_THAT(found.sentence, HasSubstr("rank " + number +
                                          " in all_reduce #1 (float32 x 1000, "
                                          "sum, group world.a" +
                                          number + ")"));
  }
}

TEST(Explain, a_chain_of_groups_is_followed_to_its_end) {
  // Rank 0 waits for rank 1 in group world, rank 1 waits for rank 2 in group world.0, and rank 2
  // computes.
  const auto found =
      explain_all({Rank(0, 3).finished(Op::kBarrier, 1, 1).call(Op::kAllReduce, 2, 1),
                   Rank(1, 3)
                       .group(1, "world.0", 0, 2)
                       .finished(Op::kBarrier, 1, 1)
                       .in_group(1)
                       .call(Op::kAllReduce, 1, 2),
                   Rank(2, 3).group(1, "world.0", 1, 2).finished(Op::kBarrier, 1, 1)});
  EXPECT_THAT(found.sentence, Says("explain.never_entered_any", "rank 2",
                                   "all_reduce #1 (float32 x 1000, sum, group world.0)"));
  EXPECT_THAT(found.ranks, ElementsAre(2));
}

TEST(Explain, a_group_without_the_records_of_all_its_ranks_is_undecided) {
  const auto found =
      explain_all({Rank(0, 3).call(Op::kAllReduce, 1, 30), Rank(2, 3).call(Op::kAllReduce, 1, 31)});
  EXPECT_EQ(found.verdict, Verdict::kUndecided);
  EXPECT_EQ(found.sentence,
            "all_reduce #1 (float32 x 1000, sum, group world) did not end; 1 of its 3 ranks has no "
            "records here (on another machine, or left in order); ranks 0, 2 have been waiting for "
            "30.0 s");
  EXPECT_THAT(found.ranks, IsEmpty());  // the ranks that wait are not to blame
}

TEST(Explain, processes_of_another_machine_are_not_called_dead) {
  Flight remote = Rank(1, 2).finished(Op::kBarrier, 1, 1).process(FlightProcess::kUnknown);
  remote.now = 0;
  const auto found =
      explain_all({Rank(0, 2).finished(Op::kBarrier, 1, 1).call(Op::kAllReduce, 2, 1), remote});
  EXPECT_EQ(found.verdict, Verdict::kNeverEntered);
  EXPECT_THAT(found.sentence, Says("explain.missing_rank_waited_for", "barrier #1", 0, "59.0 s"));
}

TEST(Explain, a_receive_that_no_rank_answers) {
  const auto found =
      explain_all({Rank(0, 2).finished(Op::kBarrier, 1, 1),
                   Rank(1, 2).finished(Op::kBarrier, 1, 1).message(Op::kReceive, 0, 58)});
  EXPECT_EQ(found.verdict, Verdict::kMessage);
  EXPECT_EQ(
      found.sentence,
      "rank 1 has been waiting in recv (float32 x 10, from rank 0, tag 0, group world) for 2.0 s; "
      "rank 0 last finished barrier #1");
  const auto failed =
      explain_all({Rank(0, 2), Rank(1, 2)
                                   .message(Op::kReceive, 0, 3)
                                   .failed(3.5, ErrorCode::kInvalid, "rank 0 sent float32 x 11")});
  EXPECT_THAT(failed.sentence,
              Says("explain.failed_in", 1, "recv (float32 x 10, from rank 0, tag 0, group world)",
                   "0.5 s", "rank 0 sent float32 x 11"));
}

TEST(Explain, a_failure_is_told_in_the_ranks_own_words) {
  EXPECT_EQ(explain_all({Rank(0, 2), Rank(1, 2).end(FlightEnd::kFailed, "no store")}).sentence,
            "rank 1 failed outside of any operation: no store");
  EXPECT_EQ(explain_all({Rank(0, 2), Rank(1, 2).end(FlightEnd::kException)}).sentence,
            "rank 1 failed outside of any operation: it ended with an exception");
  Flight culprit = Rank(1, 2).end(FlightEnd::kException);
  culprit.exit_code = 1;
  EXPECT_THAT(explain_all({Rank(0, 2).end(FlightEnd::kException), culprit}).ranks, ElementsAre(1));
  const auto found = explain_all(
      {Rank(0, 2).call(Op::kAllReduce, 1, 1).failed(2.0, ErrorCode::kAborted, "told"),
       Rank(1, 2).call(Op::kAllReduce, 1, 1).failed(1.9, ErrorCode::kSystem, "no memory")});
  EXPECT_EQ(found.verdict, Verdict::kFailed);
  EXPECT_THAT(found.sentence,
              Says("explain.failed_first", 1, "all_reduce #1 (float32 x 1000, sum, group world)",
                   "no memory"));
}

TEST(Explain, all_finished_the_same) {
  std::vector<Flight> flights;
  for (int rank = 0; rank < 4; ++rank) {
    flights.push_back(Rank(rank).finished(Op::kAllReduce, 1, 50).end(FlightEnd::kInOrder));
  }
  const auto found = explain(flights);
  EXPECT_EQ(found.verdict, Verdict::kFinished);
  EXPECT_THAT(found.ranks, IsEmpty());
  EXPECT_EQ(found.sentence,
            "all 4 ranks finished the same operations, the last one all_reduce #50 (float32 x "
            "1000, sum, group world)");
  EXPECT_EQ(
      explain_all(
          {Rank(0, 2).finished(Op::kBarrier, 1, 3), Rank(1, 2).finished(Op::kBarrier, 1, 2)})
          .sentence,
      "no rank is waiting in a collective of group world; rank 1 last finished #2, rank 0 last "
      "finished #3");
}

TEST(Explain, a_straggler) {
  std::vector<Flight> flights;
  for (int rank = 0; rank < 3; ++rank) {
    Rank table(rank, 3);
    for (std::uint32_t i = 1; i <= 100; ++i) {
      table.call(Op::kAllReduce, i, i * 0.01 + (rank == 1 ? 0.005 : rank * 0.0001)).done();
    }
    flights.push_back(table);
  }
  const auto found = explain(flights);
  EXPECT_EQ(found.verdict, Verdict::kStraggler);
  EXPECT_THAT(found.ranks, ElementsAre(1));
  EXPECT_THAT(found.sentence, Says("explain.straggler", 1, 100, 100, "0.5 s", "1.0 s"));
}

TEST(Explain, a_group_that_was_made_again_counts_as_the_newest) {
  const auto found =
      explain_all({Rank(0, 2)
                       .call(Op::kAllReduce, 5, 1)
                       .failed(2, ErrorCode::kTimeout)
                       .group(1, "world", 0, 2)
                       .in_group(1)
                       .finished(Op::kBarrier, 1, 3),
                   Rank(1, 2).group(1, "world", 1, 2).in_group(1).finished(Op::kBarrier, 1, 3)});
  EXPECT_EQ(found.sequence, 3u);
}

TEST(Explain, nothing_at_all) {
  EXPECT_EQ(explain({}).verdict, Verdict::kNothing);
  EXPECT_EQ(explain_all({Rank(0, 2), Rank(1, 2)}).verdict, Verdict::kNothing);
  EXPECT_EQ(explain_all({Rank(0, 2), Rank(1, 2)}).sentence, "no rank finished a collective");
  const Rank again = Rank(0, 1).finished(Op::kBarrier, 1, 3).group(1, "world", 0, 1);
  EXPECT_EQ(explain_all({again}).sentence, "no rank is waiting in a collective");
}

TEST(Explain, names_that_no_recorder_writes_are_survived) {
  Rank strange(1, 2);
  strange.call(static_cast<Op>(200), 1, 1);
  strange.last().call.group = 77;
  strange.last().call.reduce_op = 99;
  EXPECT_FALSE(
      explain_all({Rank(0, 2).call(static_cast<Op>(200), 1, 1), strange}).sentence.empty());
  EXPECT_THAT(describe_rank(strange), Says("explain.unknown_operation", 1));
}

TEST(Explain, one_line_about_each_rank) {
  EXPECT_EQ(describe_rank(Rank(3).finished(Op::kBroadcast, 1, 2).call(Op::kAllReduce, 3, 1)),
            "rank 3 (box, pid 703, running): last finished broadcast #2 (float32 x 1000, root 0), "
            "then is in all_reduce #3 (float32 x 1000, sum)");
  EXPECT_EQ(describe_rank(Rank(0).end(FlightEnd::kInOrder)),
            "rank 0 (box, pid 700, left in order): finished nothing");
}

}  // namespace
}  // namespace paceline
