#include <array>
#include <cerrno>
#include <chrono>
#include <future>

#include <gtest/gtest.h>
#include <poll.h>
#include <sodium.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/says.h"
#include "tests/harness/server_handshake.h"

namespace paceline {
namespace {

using harness::Says;

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
    harness::authenticate_as_server(pair.server, secret, "store", Deadline::after(5s));
  });
  EXPECT_NO_THROW(authenticate_as_client(pair.client, secret, "store", Deadline::after(5s)));
  EXPECT_NO_THROW(server.get());
}

TEST(Handshake, refuses_another_secret_on_both_ends) {
  const auto pair = connect_pair();
  auto server = std::async(std::launch::async, [&, fd = pair.server.get()] {
    harness::authenticate_as_server(pair.server, Secret::generate(), "store",
                                    Deadline::after(200ms));
  });
  EXPECT_THROW(
      authenticate_as_client(pair.client, Secret::generate(), "store", Deadline::after(5s)), Error);
  EXPECT_THROW(server.get(), Error);
}

TEST(Handshake, refuses_another_context) {
  const auto pair = connect_pair();
  const auto secret = Secret::generate();
  auto server = std::async(std::launch::async, [&] {
    harness::authenticate_as_server(pair.server, secret, "generation 1", Deadline::after(200ms));
  });
  EXPECT_THROW(authenticate_as_client(pair.client, secret, "generation 0", Deadline::after(5s)),
               Error);
  EXPECT_THROW(server.get(), Error);
}

TEST(Handshake, a_silent_stranger_is_dropped_at_the_deadline) {
  const auto pair = connect_pair();
  try {
    harness::authenticate_as_server(pair.server, Secret::generate(), "store",
                                    Deadline::after(50ms));
    FAIL() << "a silent peer was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  }
}

TEST(Secret, its_hexadecimal_text_is_itself_and_other_text_is_stretched) {
  const auto secret = Secret::generate();
  EXPECT_EQ(Secret::from_text(secret.to_hex() + "\n").to_hex(), secret.to_hex());
  const std::string words(64, 'z');
  EXPECT_EQ(Secret::from_text(words).to_hex(), Secret::from_text(words + "\n").to_hex());
  EXPECT_NE(Secret::from_text(words).to_hex(), words);
  EXPECT_THROW(Secret::from_text("too short"), Error);
}

// A stranger who connects gets the server's proof and can test guesses of the secret with it: each
// guess must cost as much as store/FORMAT.md promises.
TEST(Secret, a_guess_at_a_text_costs_two_passes_of_argon2id_over_19_mib) {
  ASSERT_GE(sodium_init(), 0);
  const std::string text = "correct horse battery staple", salt = "paceline secret1";
  std::array<unsigned char, Secret::kSize> wanted{};
  ASSERT_EQ(crypto_pwhash(wanted.data(), wanted.size(), text.data(), text.size(),
                          reinterpret_cast<const unsigned char*>(salt.data()), 2, 19U << 20,
                          crypto_pwhash_ALG_ARGON2ID13),
            0);
  std::string hex(2 * wanted.size() + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), wanted.data(), wanted.size());
  hex.pop_back();
  EXPECT_EQ(Secret::from_text(text).to_hex(), hex);
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

TEST(ClientHandshake, takes_a_valid_answer_byte_by_byte) {
  const auto secret = Secret::generate();
  ClientHandshake client(secret, "store", "the server");
  ServerHandshake server(secret, "store", "the client");
  const auto hello = client.hello();
  auto to_client = server.feed(hello);
  EXPECT_EQ(to_client.size(), 72U);
  std::vector<std::byte> proof;
  for (const std::byte byte : to_client) {
    EXPECT_TRUE(proof.empty());
    proof = client.feed(std::array{byte});
  }
  EXPECT_FALSE(client.done());
  const auto accepted = server.feed(proof);
  EXPECT_TRUE(server.done());
  EXPECT_TRUE(client.feed(accepted).empty());
  EXPECT_TRUE(client.done());
  EXPECT_EQ(client.wanted(), 0U);
}

TEST(ClientHandshake, proves_nothing_to_a_server_with_another_secret_or_context) {
  const auto secret = Secret::generate(), other = Secret::generate();
  for (const auto& [key, context] : {std::pair(&other, "store"), std::pair(&secret, "mesh")}) {
    ClientHandshake client(secret, "store", "the server");
    ServerHandshake server(*key, context, "the client");
    const auto answer = server.feed(client.hello());
    EXPECT_TRUE(client.feed(std::span(answer).first(40)).empty());
    try {
      client.feed(std::span(answer).subspan(40));
      ADD_FAILURE() << "it went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), Says("nodes.secret_differs", "the server"));
    }
  }
}

// The client's own words are sent back to it.
TEST(ClientHandshake, is_not_fooled_by_an_echo) {
  const auto secret = Secret::generate();
  ClientHandshake client(secret, "store", "an echo");
  EXPECT_TRUE(client.feed(client.hello()).empty());
  const auto own = secret.authenticate({});
  EXPECT_THROW(client.feed(own), Error);
}

TEST(ClientHandshake, refuses_another_protocol_and_version_at_their_first_wrong_byte) {
  const auto secret = Secret::generate();
  ClientHandshake other(secret, "store", "the server");
  EXPECT_THROW(other.feed(std::array{std::byte{'G'}}), Error);
  ClientHandshake newer(secret, "store", "the server");
  const std::string magic("PLINE\0\0", 7);
  EXPECT_TRUE(newer.feed(as_bytes(magic)).empty());
  try {
    newer.feed(std::array{std::byte{9}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the server speaks protocol version 9, this build speaks 3");
  }
}

TEST(ClientHandshake, agrees_on_keys_that_mirror_the_servers) {
  const auto secret = Secret::generate();
  ClientHandshake client(secret, "store", "the server", HandshakeSide::Keys::kAgree);
  ServerHandshake server(secret, "store", "the client", HandshakeSide::Keys::kAgree);
  const auto answer = server.feed(client.hello());
  client.feed(std::span(answer).first(40));
  client.feed(server.feed(client.feed(std::span(answer).subspan(40))));
  const auto mine = client.session_keys(), theirs = server.session_keys();
  EXPECT_EQ(mine.send, theirs.receive);
  EXPECT_EQ(mine.receive, theirs.send);
  EXPECT_NE(mine.send, mine.receive);
}

TEST(ConnectAttempt, goes_through_or_says_why_not) {
  Fd listener = listen_tcp({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", local_port(listener)};
  const auto outcome = [](ConnectAttempt attempt) {
    int error = attempt.go_on();
    while (error == EINPROGRESS) {
      EXPECT_TRUE(wait_ready(attempt.socket().get(), POLLOUT, Deadline::after(5s)));
      error = attempt.go_on();
    }
    return error;
  };
  EXPECT_EQ(outcome(ConnectAttempt(endpoint)), 0);
  listener.reset();
  EXPECT_EQ(outcome(ConnectAttempt(endpoint)), ECONNREFUSED);
  EXPECT_EQ(outcome(ConnectAttempt::to_unix("paceline-nobody-listens")), ECONNREFUSED);
  EXPECT_TRUE(is_retryable_connect_error(ECONNREFUSED));
  EXPECT_FALSE(is_retryable_connect_error(EACCES));
}

}  // namespace
}  // namespace paceline
