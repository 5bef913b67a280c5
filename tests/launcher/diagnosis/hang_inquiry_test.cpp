// Where the ranks of several hosts are: which of them are blamed for a hang, and which are not.

#include "paceline/launcher/diagnosis/hang_inquiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/error.h"

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr int kGeneration = 3;

// A rank of two. It finished all_reduce #1 `seconds` ago; if `waits`, it has been waiting in #2
// since then, otherwise it has not arrived there.
Flight rank_at(int rank, bool waits, double seconds = 40) {
  Flight flight;
  flight.rank = rank;
  flight.world_size = 2;
  flight.pid = 700 + rank;
  flight.host = "host-" + std::to_string(rank);
  flight.process = FlightProcess::kRunning;
  flight.now = 1000 * kSecond;
  flight.groups.push_back({0, 77, "world", rank, 2, 0});
  for (const std::uint32_t sequence : {1, 2}) {
    if (sequence == 2 && !waits) break;
    FlightOperation operation;
    operation.id = sequence;
    operation.call.op = static_cast<std::uint8_t>(Op::kAllReduce);
    operation.call.dtype = Dtype::kFloat32;
    operation.call.count = 8;
    operation.call.group_hash = 77;
    operation.sequence = sequence;
    operation.state = sequence == 1 ? FlightState::kDone : FlightState::kStarted;
    operation.entered = operation.started =
        flight.now - static_cast<std::uint64_t>(seconds * kSecond) - (sequence == 1 ? kSecond : 0);
    if (sequence == 1) operation.ended = operation.entered + kSecond;
    flight.operations.push_back(operation);
    ++flight.num_begun;
  }
  return flight;
}

Whereabouts report_of(const Flight& flight, int round = 0) {
  return {kGeneration, round, 30, encode_digest(std::vector{flight})};
}

class HangInquiries : public testing::Test {
 protected:
  HangInquiries() { inquiry_.begin(kGeneration, {{4, "a"}, {9, "b"}}); }

  // The number of the round in which agent 9 is asked; 0 if it is not asked.
  int round() {
    int round = 0;
    for (const auto& mail : inquiry_.take_mail()) {
      if (const auto* look = std::get_if<LookOrder>(&mail.order)) {
        EXPECT_EQ(mail.to, 9);
        round = look->round;
      }
    }
    return round;
  }
  // The order that all agents get, or nothing if they get none.
  std::optional<HangOrder> verdict() {
    const auto mail = inquiry_.take_mail();
    if (mail.empty()) return {};
    EXPECT_EQ(mail.size(), 2u);
    EXPECT_EQ(mail[0].order, mail[1].order);
    return std::get<HangOrder>(mail[0].order);
  }

  HangInquiry inquiry_;
  const HangInquiry::Moment now_ = AwakeClock::now();
};

TEST_F(HangInquiries, name_the_missing_rank_of_another_host) {
  inquiry_.take(4, report_of(rank_at(0, true)), now_);
  const int asked = round();
  ASSERT_GT(asked, 0);
  inquiry_.take(9, report_of(rank_at(1, false), asked), now_ + 10ms);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_EQ(hang->witness, 0);
  EXPECT_EQ(hang->generation, kGeneration);
  EXPECT_NEAR(hang->seconds, 40, 1);
  EXPECT_THAT(hang->sentence,
              Says("hang.never_entered", "rank 1", "all_reduce #2 (float32 x 8, sum, group world)",
                   "all_reduce #1", "rank 0", 40));
  // The same standstill is reported again, by a report that was sent before the verdict.
  inquiry_.take(4, report_of(rank_at(0, true)), now_ + 20ms);
  EXPECT_THAT(inquiry_.take_mail(), IsEmpty());
}

TEST_F(HangInquiries, blame_no_rank_without_the_answer_of_a_host) {
  inquiry_.take(4, report_of(rank_at(0, true)), now_);
  EXPECT_GT(round(), 0);
  inquiry_.tick(now_ + 1s);
  EXPECT_FALSE(verdict());
  ASSERT_LE(inquiry_.next_deadline(), now_ + 2s);
  inquiry_.tick(now_ + 2s);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_THAT(hang->ranks, IsEmpty());
  EXPECT_EQ(hang->witness, 0);
  EXPECT_THAT(hang->sentence, Says("hang.no_records", 1, 2));
  EXPECT_THAT(hang->sentence, Says("hang.host_silent", "b", 2));
  // The first host reports again. If the other one is silent again, there is no new verdict; its
  // answer brings one.
  inquiry_.take(4, report_of(rank_at(0, true)), now_ + 10s);
  EXPECT_GT(round(), 0);
  inquiry_.tick(now_ + 12s);
  EXPECT_FALSE(verdict());
  inquiry_.take(4, report_of(rank_at(0, true)), now_ + 20s);
  inquiry_.take(9, report_of(rank_at(1, false), round()), now_ + 20s);
  const auto decided = verdict();
  ASSERT_TRUE(decided);
  EXPECT_THAT(decided->ranks, ElementsAre(1));
}

TEST_F(HangInquiries, say_nothing_of_a_job_that_moves) {
  inquiry_.take(4, report_of(rank_at(0, true)), now_);
  inquiry_.take(9, report_of(rank_at(1, false, 5), round()), now_);
  EXPECT_FALSE(verdict());
}

TEST_F(HangInquiries, do_without_a_host_that_is_lost_and_forget_older_generations) {
  Whereabouts old = report_of(rank_at(0, true));
  old.generation = kGeneration - 1;
  inquiry_.take(4, old, now_);
  EXPECT_EQ(round(), 0);
  inquiry_.take(4, report_of(rank_at(0, true)), now_);
  EXPECT_GT(round(), 0);
  inquiry_.lose(9);
  const auto mail = inquiry_.take_mail();
  ASSERT_EQ(mail.size(), 1u);
  EXPECT_THAT(std::get<HangOrder>(mail[0].order).ranks, IsEmpty());
  inquiry_.begin(kGeneration + 1, {{4, "a"}});
  inquiry_.take(4, report_of(rank_at(0, true)), now_);
  EXPECT_THAT(inquiry_.take_mail(), IsEmpty());
}

// Only the records of the receiver are known, and the receiver is not the cause.
TEST_F(HangInquiries, do_not_blame_a_rank_that_waits_for_a_message_of_a_silent_host) {
  Flight flight = rank_at(0, true);
  flight.operations.back().call.op = static_cast<std::uint8_t>(Op::kReceive);
  flight.operations.back().call.peer = 1;
  flight.operations.back().sequence = 0;
  inquiry_.take(4, report_of(flight), now_);
  EXPECT_GT(round(), 0);
  inquiry_.tick(now_ + 2s);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_THAT(hang->ranks, IsEmpty());
}

// A launcher's report of the signs of a hang, without flight records. The job has two ranks, one on
// each of two hosts.
Whereabouts signs_of(int rank, Standstill standstill, int round = 0) {
  standstill.seconds = standstill.seconds > 0 ? standstill.seconds : 40;
  standstill.running.push_back(rank);
  return {kGeneration, round, 30, encode_digest({}), standstill};
}

TEST_F(HangInquiries, refuse_a_report_of_missing_ranks_that_no_rank_waits_for) {
  EXPECT_THROW(inquiry_.take(4, signs_of(0, {.missing = {1}}), now_), Error);
}

TEST_F(HangInquiries, name_ranks_that_are_missing_in_the_first_meeting) {
  inquiry_.take(4, signs_of(0, {.waiting = {0}, .missing = {1}}), now_);
  inquiry_.take(9, signs_of(1, {}, round()), now_);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->sentence,
            "rank 1 has not arrived at init_process_group(); rank 0 is waiting there");
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_EQ(hang->witness, 0);
  EXPECT_EQ(hang->seconds, 40);
  inquiry_.take(4, signs_of(0, {.waiting = {0}, .missing = {1}}), now_ + 10s);
  EXPECT_THAT(inquiry_.take_mail(), IsEmpty());  // this has already been reported
}

TEST_F(HangInquiries, name_the_ranks_that_wait_for_one_that_has_ended) {
  inquiry_.begin(kGeneration, {{4, "a"}});
  inquiry_.take(4, signs_of(0, {.waiting = {0}, .missing = {1}}), now_);
  const auto mail = inquiry_.take_mail();
  ASSERT_EQ(mail.size(), 1u);
  const auto& hang = std::get<HangOrder>(mail[0].order);
  EXPECT_EQ(
      hang.sentence,
      "rank 1 has not arrived at init_process_group() and has ended; rank 0 is waiting there");
  EXPECT_THAT(hang.ranks, ElementsAre(0));
}

TEST_F(HangInquiries, name_ranks_that_are_stopped) {
  inquiry_.take(4, signs_of(0, {}), now_);
  inquiry_.take(9, signs_of(1, {.stopped = {1}}, round()), now_);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_THAT(hang->sentence, Says("hang.rank_stopped", "rank 1"));
  EXPECT_THAT(hang->ranks, ElementsAre(1));
}

TEST_F(HangInquiries, name_all_ranks_when_none_makes_a_step_or_computes) {
  const Standstill idle{.steps = 7, .idle = true};
  inquiry_.take(4, signs_of(0, idle), now_);
  inquiry_.take(9, signs_of(1, idle, round()), now_);
  const auto hang = verdict();
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->sentence,
            "ranks 0, 1 are idle outside of any operation: steps have stopped, and none "
            "of them computes");
  EXPECT_THAT(hang->ranks, ElementsAre(0, 1));
  // A later standstill is a new one: where no operation is recorded, steps are the progress.
  const Standstill later{.steps = 9, .idle = true};
  inquiry_.take(4, signs_of(0, later), now_ + 100s);
  inquiry_.take(9, signs_of(1, later, round()), now_ + 100s);
  EXPECT_TRUE(verdict());
}

TEST_F(HangInquiries, say_nothing_of_ranks_that_compute_or_never_made_a_step) {
  const auto says_nothing = [&](const Standstill& one, const Standstill& other) {
    inquiry_.take(4, signs_of(0, one), now_);
    inquiry_.take(9, signs_of(1, other, round()), now_);
    return !verdict();
  };
  EXPECT_TRUE(says_nothing({.steps = 7, .idle = true}, {.steps = 7}));
  EXPECT_TRUE(says_nothing({.idle = true}, {.idle = true}));
  EXPECT_TRUE(says_nothing({.steps = 7, .idle = true}, {.seconds = 5, .steps = 7, .idle = true}));
  EXPECT_TRUE(says_nothing({.stopped = {0}}, {.seconds = 5}));
  // A host that does not answer is also a reason to blame no rank.
  inquiry_.take(4, signs_of(0, {.steps = 7, .idle = true}), now_);
  EXPECT_GT(round(), 0);
  inquiry_.tick(now_ + 2s);
  EXPECT_FALSE(verdict());
}

TEST(FlightDigest, keeps_what_tells_where_a_rank_is) {
  Flight flight = rank_at(1, true, 12);
  flight.failure = "no \"such\" thing";
  flight.operations.back().error = ErrorCode::kTimeout;
  const auto read = decode_digest(encode_digest(std::vector{flight}));
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].rank, 1);
  EXPECT_EQ(read[0].pid, 701);
  EXPECT_EQ(read[0].failure, flight.failure);
  EXPECT_EQ(read[0].num_begun, 2u);
  EXPECT_EQ(read[0].groups[0].name, "world");
  ASSERT_EQ(read[0].operations.size(), 2u);
  EXPECT_EQ(read[0].operations[1].state, FlightState::kStarted);
  EXPECT_EQ(read[0].operations[1].error, ErrorCode::kTimeout);
  EXPECT_EQ(read[0].operations[1].ended, 0u);
  EXPECT_EQ((read[0].now - read[0].operations[1].entered) / kSecond, 12u);
}

TEST(FlightDigest, is_bounded_however_many_ranks_and_operations_there_are) {
  Flight flight = rank_at(0, true);
  for (std::uint64_t id = 3; id < 500; ++id) {
    flight.operations.push_back(flight.operations.back());
    flight.operations.back().id = id;
  }
  const std::string one = encode_digest(std::vector{flight});
  EXPECT_LT(one.size(), 4096u);
  const std::string many = encode_digest(std::vector<Flight>(4096, flight));
  EXPECT_LE(many.size(), 384u << 10);
  EXPECT_LT(encode(Report(Whereabouts{0, 0, 30, many})).size(), kMaxAgentMessage);
  EXPECT_LT(decode_digest(many).size(), 4096u);
}

TEST(FlightDigest, that_makes_no_sense_is_an_error) {
  const std::string good = encode_digest(std::vector{rank_at(0, true)});
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[7]"), std::string(R"([{"rank":0}])"),
        good.substr(0, good.size() / 2)}) {
    EXPECT_THROW(decode_digest(text), Error) << text;
  }
  std::string wrong = good;
  wrong.replace(wrong.find("\"rank\":0"), 8, "\"rank\":9");
  EXPECT_THROW(decode_digest(wrong), Error);
}

}  // namespace
}  // namespace paceline::launcher
