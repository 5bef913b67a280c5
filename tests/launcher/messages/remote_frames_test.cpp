// The messages between the launchers of two hosts, as bytes.

#include "paceline/launcher/messages/remote_frames.h"

#include <random>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/random_seed.h"

namespace paceline::launcher {
namespace {

std::vector<Frame> all_frames(FrameReader& reader) {
  std::vector<Frame> frames;
  while (auto frame = reader.next()) frames.push_back(*frame);
  return frames;
}

TEST(RemoteFrames, arrive_whole_however_they_are_cut) {
  const std::string bytes = std::string(kGreeting) + encode_frame(FrameKind::kHello, "0.1") +
                            encode_frame(FrameKind::kOut, std::string(1000, 'x')) +
                            encode_frame(FrameKind::kAlive);
  for (std::size_t piece : {1, 2, 7, 100, 5000}) {
    FrameReader reader(kGreeting);
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.feed(std::string_view(bytes).substr(at, piece));
      for (Frame& frame : all_frames(reader)) frames.push_back(std::move(frame));
    }
    ASSERT_EQ(frames.size(), 3U) << piece;
    EXPECT_EQ(frames[0].payload, "0.1");
    EXPECT_EQ(frames[1].payload, std::string(1000, 'x'));
    EXPECT_EQ(frames[2].kind, FrameKind::kAlive);
  }
}

TEST(RemoteFrames, output_of_a_login_before_the_greeting_is_skipped_and_kept_for_messages) {
  FrameReader reader(kGreeting);
  reader.feed("Welcome to b\n\x01pace");
  EXPECT_TRUE(all_frames(reader).empty());
  EXPECT_FALSE(reader.greeted());
  reader.feed("line\n" + std::string(kGreeting) + encode_frame(FrameKind::kHello, "1"));
  EXPECT_EQ(all_frames(reader).size(), 1U);
  EXPECT_EQ(reader.skipped(), "Welcome to b\n\x01paceline\n");
}

TEST(RemoteFrames, bytes_that_are_not_a_frame_are_an_error_and_never_memory) {
  FrameReader reader;
  reader.feed("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THROW(reader.next(), Error);
  FrameReader huge;
  huge.feed(std::string("1\xff\xff\xff\x7f", 5));
  EXPECT_THROW(huge.next(), Error);
}

TEST(RemoteJob, comes_back_as_it_was) {
  RemoteJob job;
  job.arguments = {"--tee=3", "--", "./train", "", "a\nb", "\xff\xfe"};
  job.directory = "/a b";
  job.environment = {{"OMP_NUM_THREADS", "2"}, {"X", "'$(id)\n"}};
  job.part = {.host = "a", .secret = "00", .ranks_per_host = {4, 2}};
  job.port = 29500;
  EXPECT_EQ(decode_job(encode(job)), job);
  job.part.meeting = Endpoint{"10.0.0.2", 4000};
  EXPECT_EQ(decode_job(encode(job)), job);
}

TEST(RemoteFrames, clock_readings_and_endpoints_come_back_as_they_were) {
  using std::chrono::nanoseconds;
  const ClockExchange exchange{.asked = nanoseconds(1), .heard = nanoseconds(-2)};
  EXPECT_EQ(decode_clock_exchange(encode(exchange)), exchange);
  EXPECT_THROW(decode_clock_exchange(encode(exchange).substr(0, 20)), Error);
  EXPECT_THROW(decode_clock_exchange(encode(exchange) + "x"), Error);
  const Endpoint endpoint{"fe80::1", 4000};
  EXPECT_EQ(decode_endpoint(encode(endpoint)), endpoint);
  EXPECT_THROW(decode_endpoint(""), Error);
  EXPECT_THROW(decode_endpoint(encode(endpoint) + "x"), Error);
}

TEST(RemoteFrames, a_number_has_exactly_its_bytes) {
  EXPECT_EQ(decode_number<std::uint8_t>("\xff"), 255);
  EXPECT_EQ(decode_number<std::uint16_t>("\x01\x02"), 0x0201);
  EXPECT_THROW(decode_number<std::uint8_t>(""), Error);
  EXPECT_THROW(decode_number<std::uint8_t>("12"), Error);
  EXPECT_THROW(decode_number<std::uint32_t>("123"), Error);
}

TEST(RemoteJob, bytes_that_are_cut_or_changed_are_an_error_or_another_job) {
  const std::string whole = encode(RemoteJob{.arguments = {"a", "b"}, .environment = {{"c", "d"}}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_job(whole.substr(0, size)), Error) << size;
  }
  EXPECT_THROW(decode_job(whole + "x"), Error);
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      decode_job(bytes);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace paceline::launcher
