#include "paceline/engine/store/tcp_store.h"

#include <fstream>
#include <future>
#include <iomanip>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/store/store_protocol.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/server_handshake.h"
#include "tests/harness/stopped_process.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

const Endpoint kLoopback{"127.0.0.1", 0};

TEST(TcpStore, waits_for_a_server_that_starts_later) {
  const auto secret = Secret::generate();
  const auto port = local_port(listen_tcp(kLoopback));
  auto client = std::async(std::launch::async, [&] {
    TcpStore store({"127.0.0.1", port}, secret, 20s);
    store.set("key", "1");
  });
  EXPECT_EQ(client.wait_for(20ms), std::future_status::timeout);
  const TcpStoreServer server(Endpoint{"127.0.0.1", port}, secret);
  EXPECT_NO_THROW(client.get());
}

TEST(TcpStore, names_the_endpoint_when_no_server_comes) {
  const auto port = local_port(listen_tcp(kLoopback));
  expect_error(ErrorCode::kTimeout, {"127.0.0.1:" + std::to_string(port), "refused"}, [&] {
    TcpStore store({"127.0.0.1", port}, Secret::generate(), 50ms);
  });
}

TEST(TcpStore, refuses_another_secret_at_once) {
  const TcpStoreServer server(kLoopback, Secret::generate());
  expect_error(ErrorCode::kInvalid, {std::to_string(server.port()), "another job secret"}, [&] {
    TcpStore store({"127.0.0.1", server.port()}, Secret::generate(), 20s);
  });
}

TEST(TcpStore, a_waiting_call_and_every_later_one_hear_at_once_that_the_server_died) {
  const auto secret = Secret::generate();
  auto server = std::make_unique<TcpStoreServer>(kLoopback, secret);
  const std::string endpoint = "127.0.0.1:" + std::to_string(server->port());
  TcpStore store({"127.0.0.1", server->port()}, secret);
  TcpStore idle({"127.0.0.1", server->port()}, secret);
  auto waiting = std::async(std::launch::async, [&] { store.get("never", 60s); });
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  expect_error(ErrorCode::kPeerLost, {endpoint}, [&] { waiting.get(); });
  expect_error(ErrorCode::kPeerLost, {endpoint}, [&] { store.set("a", "1"); });
  expect_error(ErrorCode::kPeerLost, {endpoint}, [&] { idle.set("a", "1"); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(TcpStore, a_new_connection_to_a_dead_server_is_a_lost_peer) {
  const auto secret = Secret::generate();
  auto server = std::make_unique<TcpStoreServer>(kLoopback, secret);
  TcpStore store({"127.0.0.1", server->port()}, secret);
  std::vector<std::future<void>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      for (;;) store.add("count", 1);
    }));
  }
  store.wait({"count"}, 10s);
  server.reset();
  for (auto& call : calls) expect_error(ErrorCode::kPeerLost, {}, [&] { call.get(); });
}

// The backlog of the server is full, so the kernel drops the first packet of the connection and
// sends it again a second later.
TEST(TcpStore, a_connection_that_takes_long_does_not_make_a_live_server_lost) {
  const auto secret = Secret::generate();
  Fd listener = listen_tcp(kLoopback, 0);
  const Endpoint endpoint{"127.0.0.1", local_port(listener)};
  auto accepted = std::async(std::launch::async, [&] {
    Fd connection = accept_connection(listener, Deadline::after(20s));
    harness::authenticate_as_server(connection, secret, kStoreContext, Deadline::after(20s));
    return connection;
  });
  TcpStore store(endpoint, secret);
  Fd first = accepted.get();
  const auto waiting = std::async(std::launch::async, [&] {
    EXPECT_THROW(store.get("never", 60s), Error);  // uses the first connection until its end
  });
  ASSERT_TRUE(wait_ready(first.get(), POLLIN, Deadline::after(20s)));
  const Fd crowd = connect_tcp(endpoint, Deadline::after(20s));
  auto call = std::async(std::launch::async, [&] { store.set("key", "1"); });
  EXPECT_EQ(call.wait_for(700ms), std::future_status::timeout);
  const TcpStoreServer server(std::move(listener), secret);
  EXPECT_NO_THROW(call.get());
  EXPECT_EQ(store.get("key", 20s), "1");
  first.reset();
}

// All processes of a job were stopped, and the server continues a little later than this client.
TEST(TcpStore, a_client_that_was_stopped_while_it_connected_does_not_call_the_server_dead) {
  const auto secret = Secret::generate();
  const Endpoint endpoint{"127.0.0.1", local_port(listen_tcp(kLoopback))};
  const auto client = [&] {
    Fd listener = listen_tcp(endpoint);
    auto accepted = std::async(std::launch::async, [&] {
      Fd connection = accept_connection(listener, Deadline::after(20s));
      harness::authenticate_as_server(connection, secret, kStoreContext, Deadline::after(20s));
      wait_ready(connection.get(), POLLIN, Deadline::after(20s));
      return connection;
    });
    TcpStore store(endpoint, secret);
    const auto waiting = std::async(std::launch::async, [&] { store.get("never", 60s); });
    // This is the only connection, and it is in use; the next call needs another one.
    const Fd connection = accepted.get();
    listener.reset();
    harness::stop_soon();
    try {
      store.set("key", "1");
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::unique_ptr<TcpStoreServer> server;
  EXPECT_TRUE(harness::in_a_process(client, 1500ms, [&] {
    std::this_thread::sleep_for(300ms);
    server = std::make_unique<TcpStoreServer>(endpoint, secret);
  }));
}

TEST(TcpStore, a_client_that_was_stopped_before_it_was_turned_away_tries_again) {
  const auto secret = Secret::generate();
  Fd listener = listen_tcp(kLoopback);
  const Endpoint endpoint{"127.0.0.1", local_port(listener)};
  const auto client = [&] {
    listener.reset();  // the parent process still has it
    harness::stop_soon();
    try {
      TcpStore(endpoint, secret, 500ms).set("key", "1");
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  std::unique_ptr<TcpStoreServer> server;
  EXPECT_TRUE(harness::in_a_process(client, 1500ms, [&] {
    accept_connection(listener, Deadline::after(10s)).reset();
    listener.reset();
    server = std::make_unique<TcpStoreServer>(endpoint, secret);
  }));
}

TEST(TcpStore, the_server_can_wait_for_its_clients_to_leave) {
  const auto secret = Secret::generate();
  TcpStoreServer server(kLoopback, secret);
  EXPECT_TRUE(server.wait_until_clients_left(0ms));
  // Many rounds, because a first command that followed the handshake at once was answered before
  // its client was counted.
  for (int round = 0; round < 500; ++round) {
    TcpStore store({"127.0.0.1", server.port()}, secret);
    store.add("count", 1);
    ASSERT_FALSE(server.wait_until_clients_left(0ms)) << "round " << round;
    if (round % 100 == 0) {
      ASSERT_FALSE(server.wait_until_clients_left(20ms));
    }
  }
  EXPECT_TRUE(server.wait_until_clients_left(20s));
}

TEST(TcpStore, knows_the_local_address_on_the_way_to_the_server) {
  const auto secret = Secret::generate();
  const TcpStoreServer server(kLoopback, secret);
  EXPECT_EQ(TcpStore({"127.0.0.1", server.port()}, secret).local_address(), "127.0.0.1");
}

TEST(TcpStore, a_value_of_the_greatest_size_passes_under_the_longest_key) {
  const auto secret = Secret::generate();
  const TcpStoreServer server(kLoopback, secret);
  TcpStore store({"127.0.0.1", server.port()}, secret);
  const std::string key(Store::kMaxKeyBytes, 'k');
  store.set(key, std::string(Store::kMaxValueBytes, 'v'));
  EXPECT_EQ(store.get(key).size(), Store::kMaxValueBytes);
  expect_error(ErrorCode::kInvalid, {"fewer keys"}, [&] { store.multi_get({key, key}, 1s); });
  EXPECT_EQ(store.num_keys(), 1);
}

TEST(TcpStore, the_servers_quota_is_a_typed_error_at_the_client) {
  const auto secret = Secret::generate();
  const TcpStoreServer server(kLoopback, secret, {.limits = {.max_keys = 2, .max_bytes = 100}});
  TcpStore store({"127.0.0.1", server.port()}, secret);
  store.multi_set({"a", "b"}, {"1", "2"});
  expect_error(ErrorCode::kInvalid, {"the store is full", "'c'"}, [&] { store.set("c", "3"); });
  expect_error(ErrorCode::kInvalid, {"the store is full"},
               [&] { store.append("a", std::string(100, 'x')); });
  EXPECT_EQ(store.get("a"), "1");
}

TEST(TcpStore, the_server_listens_on_loopback_only_when_told_127_0_0_1) {
  const TcpStoreServer server(kLoopback, Secret::generate());
  std::ostringstream wanted;  // /proc/net/tcp: little-endian address, hexadecimal port, state 0A
  wanted << std::uppercase << std::hex << std::setw(4) << std::setfill('0') << server.port();
  std::ifstream table("/proc/net/tcp");
  int listeners = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state;
    fields >> number >> local >> remote >> state;
    if (state == "0A" && local.ends_with(":" + wanted.str())) {
      ++listeners;
      EXPECT_EQ(local.substr(0, 8), "0100007F");
    }
  }
  EXPECT_EQ(listeners, 1);
}

TEST(TcpStore, a_barrier_of_256_clients_takes_well_under_a_second_of_the_server) {
  constexpr int kClients = 256;
  const auto secret = Secret::generate();
  const TcpStoreServer server(kLoopback, secret);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::future<void>> clients;
  for (int rank = 0; rank < kClients; ++rank) {
    clients.push_back(std::async(std::launch::async, [&, rank] {
      TcpStore store({"127.0.0.1", server.port()}, secret, 30s);
      store.set("rank/" + std::to_string(rank), "1");
      std::vector<std::string> keys;
      for (int i = 0; i < kClients; ++i) keys.push_back("rank/" + std::to_string(i));
      store.wait(keys, 30s);
    }));
  }
  for (auto& client : clients) client.get();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  RecordProperty("seconds", std::to_string(taken.count()));
  EXPECT_LT(taken, 10s);  // about 0.1 s on an idle machine; the bound is for sanitizers under load
}

}  // namespace
}  // namespace paceline
