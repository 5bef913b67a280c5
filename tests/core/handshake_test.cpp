#include "paceline/core/handshake.h"

#include <array>
#include <chrono>
#include <future>

#include <gtest/gtest.h>

#include "paceline/core/error.h"
#include "paceline/core/socket.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

struct Pair {
  Fd client, server;
};

Pair connect_pair() {
  const Fd listener = listen_tcp({"127.0.0.1", 0});
  const auto deadline = Deadline::after(5s);
  Fd client = connect_tcp({"127.0.0.1", local_port(listener)}, deadline);
  return {std::move(client), accept_connection(listener, deadline)};
}

TEST(Handshake, accepts_the_same_secret_and_context) {
  const auto pair = connect_pair();
  const auto secret = Secret::generate();
  auto server = std::async(std::launch::async, [&] {
    authenticate_as_server(pair.server, secret, "store", Deadline::after(5s));
  });
  EXPECT_NO_THROW(authenticate_as_client(pair.client, secret, "store", Deadline::after(5s)));
  EXPECT_NO_THROW(server.get());
}

TEST(Handshake, refuses_another_secret_on_both_ends) {
  const auto pair = connect_pair();
  auto server = std::async(std::launch::async, [&, fd = pair.server.get()] {
    authenticate_as_server(pair.server, Secret::generate(), "store", Deadline::after(200ms));
  });
  EXPECT_THROW(
      authenticate_as_client(pair.client, Secret::generate(), "store", Deadline::after(5s)), Error);
  EXPECT_THROW(server.get(), Error);
}

TEST(Handshake, refuses_another_context) {
  const auto pair = connect_pair();
  const auto secret = Secret::generate();
  auto server = std::async(std::launch::async, [&] {
    authenticate_as_server(pair.server, secret, "generation 1", Deadline::after(200ms));
  });
  EXPECT_THROW(authenticate_as_client(pair.client, secret, "generation 0", Deadline::after(5s)),
               Error);
  EXPECT_THROW(server.get(), Error);
}

TEST(Handshake, a_stranger_who_says_nothing_is_dropped_at_the_deadline) {
  const auto pair = connect_pair();
  try {
    authenticate_as_server(pair.server, Secret::generate(), "store", Deadline::after(50ms));
    FAIL() << "a silent peer was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  }
}

TEST(Secret, its_hexadecimal_text_is_itself_and_other_text_is_hashed) {
  const auto secret = Secret::generate();
  EXPECT_EQ(Secret::from_text(secret.to_hex() + "\n").to_hex(), secret.to_hex());
  const std::string words(64, 'z');
  EXPECT_EQ(Secret::from_text(words).to_hex(), Secret::from_text(words + "\n").to_hex());
  EXPECT_NE(Secret::from_text(words).to_hex(), words);
  EXPECT_THROW(Secret::from_text("too short"), Error);
}

TEST(ServerHandshake, takes_a_valid_hello_byte_by_byte) {
  const auto pair = connect_pair();
  const auto secret = Secret::generate();
  auto client = std::async(std::launch::async, [&] {
    authenticate_as_client(pair.client, secret, "store", Deadline::after(5s));
  });
  ServerHandshake handshake(secret, "store", "the client");
  while (!handshake.done()) {
    std::array<std::byte, 1> byte{};
    receive_all(pair.server, byte, Deadline::after(5s));
    send_all(pair.server, handshake.feed(byte), Deadline::after(5s));
  }
  EXPECT_EQ(handshake.wanted(), 0U);
  EXPECT_NO_THROW(client.get());
}

TEST(ServerHandshake, refuses_another_protocol_at_its_first_byte) {
  const auto secret = Secret::generate();
  ServerHandshake handshake(secret, "store", "the client");
  const std::array get{std::byte{'G'}};
  EXPECT_THROW(handshake.feed(get), Error);
}

TEST(Socket, an_endpoint_out_of_range_names_its_flag) {
  for (const char* text : {"host", "host:", ":1", "host:65536", "host:-1", "host:29500x"}) {
    try {
      parse_endpoint(text, "--rdzv-endpoint");
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--rdzv-endpoint"), std::string::npos);
    }
  }
  EXPECT_EQ(parse_endpoint("[::1]:80", "x"), (Endpoint{"::1", 80}));
}

}  // namespace
}  // namespace paceline
