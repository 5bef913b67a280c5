#include "apps/bench/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/says.h"

namespace paceline::bench {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

struct Pair {
  Fd first, second;
  Pair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
      throw system_error("socketpair");
    first.reset(ends[0]);
    second.reset(ends[1]);
  }
};

Deadline soon() { return Deadline::after(20s); }

class MessagesTest : public testing::Test {
 protected:
  void expect_refusal(ErrorCode code, const testing::Matcher<std::string>& text) {
    try {
      worker_.receive<Turn>(soon());
      FAIL() << "nothing was refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), text);
    }
  }
  void send_bytes(const std::string& bytes) {
    send_all(raw_, std::as_bytes(std::span(bytes)), soon());
  }

  Pair pair_;
  Conversation worker_{std::move(pair_.first)};
  Fd raw_ = std::move(pair_.second);
};

TEST_F(MessagesTest, a_turn_of_calls_arrives_as_it_was_sent) {
  const CallTurn turn{.form = CallTurn::Form::kPipelined,
                      .width = 256,
                      .bytes = 64,
                      .reply_bytes = 16,
                      .slow_every = 100,
                      .slow_ms = 5,
                      .seconds = 0.25};
  Conversation(std::move(raw_)).send(turn, soon());
  EXPECT_EQ(worker_.receive<CallTurn>(soon()), turn);
}

TEST_F(MessagesTest, a_turn_arrives_as_it_was_sent) {
  Turn turn{.op = Op::kReduceScatter,
            .dtype = Dtype::kBfloat16,
            .placement = Placement::kOutOfPlace,
            .memory = MemoryKind::kSymmetric,
            .count = std::size_t(1) << 40,
            .fresh = false,
            .check = true,
            .min_calls = 3,
            .max_calls = 77,
            .seconds = 0.25};
  Conversation coordinator(std::move(raw_));
  coordinator.send(turn, soon());
  EXPECT_EQ(worker_.receive<Turn>(soon()), turn);
}

TEST_F(MessagesTest, a_result_arrives_as_it_was_sent) {
  Conversation coordinator(std::move(raw_));
  worker_.send(TurnResult{"", {1.5e-6, 2.5}, "rank 1: no", 3, 0.5}, soon());
  const TurnResult result = coordinator.receive<TurnResult>(soon());
  EXPECT_THAT(result.seconds, testing::ElementsAre(1.5e-6, 2.5));
  EXPECT_EQ(result.difference, "rank 1: no");
  EXPECT_EQ(result.idle_seconds, 3);
  EXPECT_EQ(result.idle_cpu_seconds, 0.5);
}

TEST_F(MessagesTest, a_failure_is_thrown_where_an_answer_was_due) {
  Conversation other(std::move(raw_));
  other.send_failure("no memory \xff", soon());
  expect_refusal(ErrorCode::kAborted, HasSubstr("no memory"));
}

TEST_F(MessagesTest, a_message_of_another_kind_is_refused) {
  Conversation other(std::move(raw_));
  other.send(Hello{0, 2}, soon());
  expect_refusal(ErrorCode::kCorrupt, Says("bench.other_message", "turn"));
}

TEST_F(MessagesTest, anything_but_a_message_is_refused) {
  send_bytes(std::string("\x03\0\0\0{}x", 7));
  expect_refusal(ErrorCode::kCorrupt, Says("bench.no_message", "turn"));
}

TEST_F(MessagesTest, a_message_without_its_members_is_refused) {
  const std::string text = R"({"kind":"turn"})";
  send_bytes(std::string("\x0f\0\0\0", 4).append(text));
  expect_refusal(ErrorCode::kCorrupt, Says("bench.message_unreadable", "turn"));
}

TEST_F(MessagesTest, a_length_beyond_reason_is_refused) {
  send_bytes("\xff\xff\xff\xff");
  expect_refusal(ErrorCode::kCorrupt, Says("bench.message_too_long", 4294967295));
}

TEST_F(MessagesTest, the_end_of_the_other_is_an_error) {
  raw_.reset();
  EXPECT_THROW(worker_.receive<Turn>(soon()), Error);
}

}  // namespace
}  // namespace paceline::bench
