// Strangers connect to the store's port: the job is not disturbed.

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/store_protocol.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

class TcpStoreFaults : public testing::Test {
 protected:
  Endpoint endpoint() const { return {"127.0.0.1", server_.port()}; }
  Fd stranger() const { return connect_tcp(endpoint(), Deadline::after(10s)); }
  // The slowest of 50 round trips of a client that belongs to the job.
  std::chrono::nanoseconds slowest_call(TcpStore& store) const {
    std::chrono::nanoseconds slowest{0};
    for (int i = 0; i < 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      store.add("count", 1);
      slowest =
          std::max<std::chrono::nanoseconds>(slowest, std::chrono::steady_clock::now() - start);
    }
    return slowest;
  }

  Secret secret_ = Secret::generate();
  TcpStoreServer server_{Endpoint{"127.0.0.1", 0}, secret_, {.handshake_timeout = 300ms}};
};

// True when the server closes the connection before the deadline.
bool gets_closed(const Fd& socket, std::chrono::milliseconds within) {
  const auto deadline = Deadline::after(within);
  try {
    for (;;) {
      std::array<std::byte, 1> byte;
      receive_all(socket, byte, deadline);
    }
  } catch (const Error& error) {
    return error.code() == ErrorCode::kPeerLost;
  }
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST_F(TcpStoreFaults, other_protocols_are_disconnected_at_once) {
  for (const char* text :
       {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH\r\n", "PLIMM", "PLINE\0\0\x7f"}) {
    const auto socket = stranger();
    const std::size_t size = text[4] == 'E' ? 8 : std::strlen(text);
    send_all(socket, std::as_bytes(std::span(text, size)), Deadline::after(1s));
    EXPECT_TRUE(gets_closed(socket, 5s)) << text;
  }
  TcpStore store(endpoint(), secret_, 5s);
  EXPECT_EQ(store.add("count", 1), 1);
}

TEST_F(TcpStoreFaults, random_bytes_cost_nothing) {
  std::mt19937 random(harness::random_seed());
  const auto before = resident_bytes();
  for (int i = 0; i < 200; ++i) {
    const auto socket = stranger();
    std::vector<std::byte> bytes(1 + random() % 5000);
    for (auto& byte : bytes) byte = std::byte(random());
    try {
      send_all(socket, bytes, Deadline::after(1s));
    } catch (const Error& error) {
      // The server closed the connection before everything was sent.
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    }
  }
  TcpStore store(endpoint(), secret_, 5s);
  EXPECT_EQ(store.add("count", 1), 1);
  EXPECT_LT(resident_bytes(), before + (32 << 20));
}

TEST_F(TcpStoreFaults, a_hello_without_a_proof_is_dropped_at_the_handshake_deadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto socket = stranger();
  send_all(socket, as_bytes("PLI"), Deadline::after(1s));
  EXPECT_TRUE(gets_closed(socket, 10s));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 250ms);
}

TEST_F(TcpStoreFaults, commands_before_the_handshake_do_nothing) {
  const auto socket = stranger();
  const auto frame = encode(StoreRequest{StoreCommand::kSet, 0, {"stolen"}, {"1"}});
  send_all(socket, frame, Deadline::after(1s));
  EXPECT_TRUE(gets_closed(socket, 5s));
  TcpStore store(endpoint(), secret_, 5s);
  EXPECT_FALSE(store.check({"stolen"}));
}

TEST_F(TcpStoreFaults, a_wrong_proof_is_disconnected) {
  const auto socket = stranger();
  expect_error(ErrorCode::kInvalid, {}, [&] {
    authenticate_as_client(socket, Secret::generate(), "store", Deadline::after(5s));
  });
  const std::vector<std::byte> wrong(32);
  send_all(socket, wrong, Deadline::after(1s));
  EXPECT_TRUE(gets_closed(socket, 5s));
}

TEST_F(TcpStoreFaults, an_authenticated_peer_that_breaks_the_protocol_is_disconnected) {
  const auto before = resident_bytes();
  for (const std::uint32_t length : {0U, (16U << 20) + 1, 1U << 31, 0xffffffffU}) {
    const auto socket = stranger();
    authenticate_as_client(socket, secret_, "store", Deadline::after(5s));
    ByteWriter frame;
    frame.put(length);
    frame.put_string("some bytes");
    send_all(socket, frame.bytes(), Deadline::after(1s));
    EXPECT_TRUE(gets_closed(socket, 5s)) << length;
  }
  const auto announces = stranger();  // announces a length within the limit, but sends nothing more
  authenticate_as_client(announces, secret_, "store", Deadline::after(5s));
  ByteWriter header;
  header.put(std::uint32_t{16 << 20});
  send_all(announces, header.bytes(), Deadline::after(1s));
  TcpStore store(endpoint(), secret_, 5s);
  EXPECT_EQ(store.add("count", 1), 1);
  EXPECT_LT(resident_bytes(), before + (8 << 20));
}

// Both ends of the thousand connections are in this process; the usual soft limit is 1024.
void allow_descriptors(rlim_t count) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_max, count) << "raise the hard limit of open files (ulimit -Hn)";
  limit.rlim_cur = std::max(limit.rlim_cur, count);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(TcpStoreFaults, a_thousand_idle_connections_do_not_disturb_the_job) {
  allow_descriptors(2048);
  TcpStore store(endpoint(), secret_, 20s);
  auto waiting = std::async(std::launch::async, [&] { return store.get("late", 20s); });
  std::vector<Fd> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(stranger());
  for (int i = 0; i < 1000; i += 3) {
    // Some clients send a few bytes. The oldest connections are closed by now.
    ::send(idle[i].get(), "PLINE", 5, MSG_NOSIGNAL);
  }
  EXPECT_LT(slowest_call(store), 10s);
  TcpStore newcomer(endpoint(), secret_, 20s);
  newcomer.set("late", "now");
  EXPECT_EQ(waiting.get(), "now");
  EXPECT_TRUE(gets_closed(idle.front(), 5s));
  EXPECT_TRUE(gets_closed(idle.back(), 5s));
}

TEST_F(TcpStoreFaults, requests_in_one_packet_are_answered_in_order) {
  const auto socket = stranger();
  authenticate_as_client(socket, secret_, "store", Deadline::after(5s));
  auto frames = encode(StoreRequest{StoreCommand::kGet, 20, {"absent"}, {}});
  const auto second = encode(StoreRequest{StoreCommand::kAdd, 5, {"count"}, {}});
  frames.insert(frames.end(), second.begin(), second.end());
  send_all(socket, frames, Deadline::after(1s));
  for (const int status : {1 + static_cast<int>(ErrorCode::kTimeout), 0}) {
    std::array<std::byte, kFrameHeaderBytes> header;
    receive_all(socket, header, Deadline::after(5s));
    std::vector<std::byte> body(frame_length(header));
    receive_all(socket, body, Deadline::after(5s));
    EXPECT_EQ(decode_reply(body).status, status);
  }
}

TEST_F(TcpStoreFaults, a_client_that_vanishes_while_it_waits_leaves_nothing_behind) {
  {
    const auto socket = stranger();
    authenticate_as_client(socket, secret_, "store", Deadline::after(5s));
    send_all(socket, encode(StoreRequest{StoreCommand::kGet, 60000, {"late"}, {}}),
             Deadline::after(1s));
  }
  TcpStore store(endpoint(), secret_, 5s);
  store.set("late", "now");
  EXPECT_EQ(store.get("late", 1s), "now");
}

// Runs in its own child process, because a lowered limit would stay for all later tests. Returns
// the number of the failed check, or 0.
int survive_with_64_descriptors() {
  const rlimit limit{64, 64};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  int ready[2], finish[2];
  if (pipe(ready) != 0 || pipe(finish) != 0) return 3;
  const auto secret = Secret::generate();
  const Fd listener = listen_tcp({"127.0.0.1", 0});
  const Endpoint endpoint{"127.0.0.1", local_port(listener)};
  std::vector<pid_t> flooders;
  for (int i = 0; i < 8; ++i) {
    flooders.push_back(fork());
    if (flooders.back() == 0) {
      std::vector<Fd> idle;
      for (int c = 0; c < 50; ++c) idle.push_back(connect_tcp(endpoint, Deadline::after(10s)));
      if (write(ready[1], "r", 1) != 1) _exit(1);
      char end;
      _exit(read(finish[0], &end, 1) == 1 ? 0 : 1);
    }
  }
  char byte;
  int result = 0;
  {
    const TcpStoreServer server(Fd(dup(listener.get())), secret);
    for (int i = 0; i < 8; ++i) {
      if (read(ready[0], &byte, 1) != 1) result = 4;
    }
    TcpStore store(endpoint, secret, 10s);
    for (int i = 1; i <= 20; ++i) {
      if (store.add("count", 1) != i) result = 5;
    }
    // The process that hosts the store still has descriptors.
    const Fd own(open("/dev/null", O_RDONLY));
    if (!own) result = 6;
  }
  if (write(finish[1], "12345678", 8) != 8) result = 7;
  for (const pid_t flooder : flooders) waitpid(flooder, nullptr, 0);
  return result;
}

TEST(TcpStoreDescriptors, a_flood_of_400_connections_with_64_descriptors_is_survived) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(survive_with_64_descriptors());
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      _exit(99);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace paceline
