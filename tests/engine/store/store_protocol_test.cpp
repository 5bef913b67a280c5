#include "paceline/engine/store/store_protocol.h"

#include <random>

#include <gtest/gtest.h>

#include "paceline/engine/core/bytes.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

std::span<const std::byte> body_of(const std::vector<std::byte>& frame) {
  EXPECT_EQ(frame_length(std::span(frame).first(kFrameHeaderBytes)),
            frame.size() - kFrameHeaderBytes);
  return std::span(frame).subspan(kFrameHeaderBytes);
}

TEST(StoreProtocol, a_request_survives_the_wire) {
  const auto frame = encode(StoreRequest{StoreCommand::kCompareSet, -7, {"key"}, {"old", ""}});
  const auto request = decode_request(body_of(frame));
  EXPECT_EQ(request.command, StoreCommand::kCompareSet);
  EXPECT_EQ(request.number, -7);
  EXPECT_EQ(request.keys, std::vector<std::string>{"key"});
  EXPECT_EQ(request.values, (std::vector<std::string>{"old", ""}));
}

TEST(StoreProtocol, every_shortened_request_is_corrupt) {
  const auto frame = encode(StoreRequest{StoreCommand::kSet, 0, {"key"}, {"value"}});
  const auto body = body_of(frame);
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_THROW(decode_request(body.first(size)), Error) << size;
  }
}

TEST(StoreProtocol, huge_lengths_and_counts_are_refused_before_allocation) {
  for (const std::uint32_t length : {0U, (16U << 20) + 1, 1U << 31, 0xffffffffU}) {
    ByteWriter header;
    header.put(length);
    expect_error(ErrorCode::kCorrupt, {std::to_string(length)},
                 [&] { frame_length(header.bytes()); });
  }
  ByteWriter body;
  body.put(StoreCommand::kCheck);
  body.put(std::int64_t{0});
  body.put(std::uint32_t{0xffffffff});
  expect_error(ErrorCode::kCorrupt, {"4294967295 strings"}, [&] { decode_request(body.bytes()); });
}

TEST(StoreProtocol, a_command_with_the_wrong_fields_is_corrupt) {
  const std::vector<StoreRequest> wrong = {
      {StoreCommand::kAdd, 1, {}, {}},           {StoreCommand::kAdd, 1, {"a", "b"}, {}},
      {StoreCommand::kCompareSet, 0, {"a"}, {}}, {StoreCommand::kSet, 0, {"a"}, {}},
      {StoreCommand::kGet, 0, {"a"}, {"v"}},     {static_cast<StoreCommand>(99), 0, {}, {}},
      {static_cast<StoreCommand>(0), 0, {}, {}}};
  for (const auto& request : wrong) {
    const auto frame = encode(request);
    expect_error(ErrorCode::kCorrupt, {}, [&] { decode_request(body_of(frame)); });
  }
}

TEST(StoreProtocol, random_bytes_never_do_more_than_throw) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (auto& byte : bytes) byte = std::byte(random() % 8);
    try {
      decode_request(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    try {
      decode_reply(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace paceline
