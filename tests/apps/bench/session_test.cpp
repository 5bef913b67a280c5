// Sessions with real ranks that take turns, and what happens if a contestant misbehaves.

#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/bench/collective_session.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The contestant "gloo" is a test program that misbehaves.
class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    std::filesystem::create_symlink(PACELINE_CONTESTANT, directory_.file("bench-paceline"));
    std::filesystem::create_symlink(PACELINE_FAULTY_CONTESTANT, directory_.file("bench-gloo"));
    options_.ops = {Op::kAllReduce};
    options_.sizes = {4096};
    options_.rounds = 2;
    options_.calls = 3;
    options_.programs = directory_.path();
    options_.turn_limit = 20s;
  }

  void add_peer(const std::string& fault) {
    options_.peers = {"gloo"};
    options_.variables["PACELINE_TEST_FAULT"] = fault;
  }

  Report run(const SessionEvents& events = {}) { return Session(options_).run(events); }

  FreshDirectory directory_;
  SessionOptions options_;
};

std::vector<std::string> labels(const Report& report) {
  std::vector<std::string> all;
  for (const Row& row : report.rows) all.push_back(fmt::format("{} {}", row.label(), row.bytes));
  return all;
}

// All notes but the one about noise, because the machine that runs this test may be busy.
std::vector<std::string> notes_of_contestants(const Report& report) {
  std::vector<std::string> notes = report.notes;
  std::erase_if(notes, [](const std::string& note) { return note.starts_with("noisy"); });
  return notes;
}

TEST_F(SessionTest, everybody_has_one_turn_a_round) {
  add_peer("none");
  options_.memory = {MemoryKind::kSymmetric, MemoryKind::kOrdinary};
  options_.sizes = {4096, 8192};
  int turns = 0;
  SessionEvents events;
  events.is_interrupted = [&] { return ++turns < 0; };
  const Report report = run(events);
  EXPECT_EQ(turns, 2 * 3 * 3);  // sizes x rounds, with the one to warm up, x entrants
  EXPECT_THAT(labels(report),
              ElementsAre("paceline, symmetric 4096", "paceline, ordinary 4096", "gloo 4096",
                          "paceline, symmetric 8192", "paceline, ordinary 8192", "gloo 8192"));
  for (const Row& row : report.rows) EXPECT_THAT(row.rounds, SizeIs(2));
}

TEST_F(SessionTest, rows_hold_what_was_measured) {
  options_.num_ranks = 3;
  options_.check = true;
  const Report report = run();
  ASSERT_THAT(report.rows, SizeIs(1));
  const Row& row = report.rows.front();
  EXPECT_EQ(row.label(), "paceline, symmetric");
  EXPECT_EQ(row.ranks, 3);
  EXPECT_EQ(row.bytes, 4096u);
  EXPECT_TRUE(row.checked);
  ASSERT_THAT(row.rounds, SizeIs(2));
  for (const Round& round : row.rounds) {
    EXPECT_EQ(round.calls, 3);
    EXPECT_GT(round.min, 0);
    EXPECT_LE(round.min, round.median);
    EXPECT_LE(round.median, round.p95);
    EXPECT_LE(round.p95, round.max);
  }
}

TEST_F(SessionTest, a_barrier_knows_no_kinds_of_memory) {
  options_.memory = {MemoryKind::kSymmetric, MemoryKind::kOrdinary};
  options_.ops = {Op::kBarrier, Op::kAllReduce};
  const Report report = run();
  EXPECT_THAT(labels(report),
              ElementsAre("paceline 0", "paceline, symmetric 4096", "paceline, ordinary 4096"));
}

TEST_F(SessionTest, every_operation_is_right_in_every_form) {
  options_.check = true;
  options_.ops = measurable_ops();
  options_.memory = {MemoryKind::kSymmetric, MemoryKind::kOrdinary};
  options_.sizes = {8, 1000, 300 << 10};
  options_.rounds = 1;
  EXPECT_NO_THROW(run());
  options_.num_ranks = 3;
  options_.dtype = Dtype::kBfloat16;
  options_.fresh = false;
  EXPECT_NO_THROW(run());
  options_.ops = {Op::kAllReduce, Op::kAllGather};
  for (const Placement placement : {Placement::kInPlace, Placement::kOutOfPlace}) {
    options_.placement = placement;
    EXPECT_NO_THROW(run());
  }
}

TEST_F(SessionTest, a_wrong_result_puts_a_peer_out_and_is_told) {
  add_peer("none");  // its two ranks add nothing up
  options_.check = true;
  const Report report = run();
  EXPECT_THAT(labels(report), ElementsAre("paceline, symmetric 4096"));
  EXPECT_THAT(report.notes, Contains(Says("bench.wrong_result", "all_reduce", "float32")));
}

struct Fault {
  const char* name;
  testing::Matcher<std::string> told;
};
class FaultySession : public SessionTest, public testing::WithParamInterface<Fault> {};

TEST_P(FaultySession, goes_on_without_the_peer) {
  add_peer(GetParam().name);
  options_.sizes = {4096, 64 << 10, 128 << 10};
  // The limit is short for the contestant that hangs. Paceline's own turns of milliseconds must
  // also fit within it.
  if (GetParam().name == std::string("hang")) options_.turn_limit = 5s;
  const Report report = run();
  EXPECT_THAT(labels(report),
              ElementsAre("paceline, symmetric 4096", "gloo 4096", "paceline, symmetric 65536",
                          "paceline, symmetric 131072"));
  EXPECT_THAT(notes_of_contestants(report),
              ElementsAre(AllOf(Says("bench.peer_left_out", "Gloo", "all_reduce of 64 KiB"),
                                GetParam().told)));
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultySession,
                         testing::Values(Fault{"throw", HasSubstr("rank 1: the cable is cut")},
                                         Fault{"crash", HasSubstr("rank 1: ")},
                                         Fault{"hang", Says("bench.no_answer_in_time", 2)}));

TEST_F(SessionTest, a_peer_that_does_not_start_is_missing) {
  add_peer("start");
  const Report report = run();
  EXPECT_THAT(report.rows, SizeIs(1));
  ASSERT_THAT(report.missing, SizeIs(1));
  EXPECT_THAT(report.missing[0], Says("bench.peer_did_not_start", "Gloo"));
  EXPECT_THAT(report.missing[0], HasSubstr("no such network"));
}

TEST_F(SessionTest, an_operation_that_a_peer_lacks_is_reported_once) {
  add_peer("lacks");
  options_.sizes = {4096, 8192};
  const Report report = run();
  EXPECT_THAT(report.rows, SizeIs(2));
  EXPECT_THAT(notes_of_contestants(report), ElementsAre("Gloo has no all_reduce"));
}

TEST_F(SessionTest, a_peer_that_computes_out_of_turn_is_told) {
  add_peer("restless");
  options_.sizes = {16 << 20};
  options_.rounds = 20;
  options_.calls = 10;
  EXPECT_THAT(run().notes, Contains(Says("bench.peer_is_restless", "Gloo")));
}

TEST_F(SessionTest, a_missing_program_is_told_before_anything_starts) {
  options_.peers = {"mpich"};
  const Report report = run();
  ASSERT_THAT(report.missing, SizeIs(1));
  EXPECT_THAT(report.missing[0], HasSubstr("libmpich-dev"));
  EXPECT_THAT(report.rows, SizeIs(1));
}

TEST_F(SessionTest, without_its_own_program_there_is_no_session) {
  options_.programs = directory_.file("nowhere");
  EXPECT_THROW(Session{options_}, Error);
}

TEST(MemoryNeedTest, counts_all_buffers_of_all_ranks) {
  SessionOptions options;
  options.num_ranks = 4;
  options.sizes = {8, 1 << 20};
  options.ops = {Op::kAllReduce};
  EXPECT_EQ(bytes_needed(options), std::size_t(4) << 20);
  options.ops = {Op::kAllReduce, Op::kAllToAll};
  EXPECT_EQ(bytes_needed(options), std::size_t(8) << 20);
  options.ops = {Op::kBarrier};
  EXPECT_EQ(bytes_needed(options), 0u);
}

}  // namespace
}  // namespace paceline::bench
