#pragma once

// A network that fails: a TCP relay between workers, in the test's process. A callee's entry in the
// store is changed to lead there.

#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "paceline/core/io.h"
#include "paceline/core/socket.h"
#include "paceline/core/thread.h"
#include "paceline/rpc/directory.h"
#include "paceline/rpc/frame.h"

namespace paceline::rpc::testing_job {

class Relay {
 public:
  // What may happen to each frame, one time in `one_in` (0: never). A handshake may fail as well,
  // but then nothing else would be tested.
  struct Faults {
    unsigned cut_one_in = 0;     // both directions end
    unsigned repeat_one_in = 0;  // the piece is sent twice
  };

  // From now on, who calls `callee` comes through here. Requires: callers are on other "hosts".
  Relay(const std::shared_ptr<Store>& store, const std::string& callee, Faults faults)
      : faults_(faults), listener_(listen_tcp({"127.0.0.1", 0})) {
    auto entry = Directory(store, kDefaultLease).find(callee).value();
    to_ = {entry.tcp_host, entry.tcp_port};
    entry.tcp_host = "127.0.0.1";
    entry.tcp_port = local_port(listener_);
    const auto bytes = write_message(entry).copy();
    store->set("rpc/worker/" + callee,
               std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    thread_ = start_thread("relay", [this](const std::stop_token& stop) { run(stop); });
  }
  int num_faults() const { return num_faults_; }
  // Nothing goes through in one direction, without a sign to anybody.
  void swallow_what_the_callee_sends(bool swallow) { swallows_ = swallow; }

 private:
  static constexpr std::size_t kPiece =
      300;  // so that faults do not depend on what is sent at once

  void run(const std::stop_token& stop) {
    std::mt19937 random(1);
    std::list<std::pair<Fd, Fd>> pairs;
    while (!stop.stop_requested()) {
      std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& [a, b] : pairs) {
        entries.push_back({.fd = a.get(), .events = POLLIN, .revents = 0});
        entries.push_back({.fd = b.get(), .events = POLLIN, .revents = 0});
      }
      poll_for(entries, std::chrono::milliseconds(20));
      if (entries[0].revents != 0) {
        Fd caller(accept_one(listener_.get()));
        if (caller) {
          pairs.emplace_back(std::move(caller),
                             connect_tcp(to_, Deadline::after(std::chrono::seconds(5))));
        }
      }
      for (auto next = pairs.begin(); next != pairs.end();) {
        const auto pair = next++;
        if (!forward(pair->first, pair->second, random, false) ||
            !forward(pair->second, pair->first, random, true)) {
          pairs.erase(pair);
        }
      }
    }
  }
  // The next frame, or what has arrived of the handshake; empty and errno if there is none.
  static std::vector<std::byte> receive_piece(const Fd& from, bool& is_frame) {
    std::vector<std::byte> bytes(kFrameBytes);
    const ssize_t there = receive_some(from.get(), bytes, MSG_PEEK);
    is_frame = there == static_cast<ssize_t>(kFrameBytes) &&
               std::memcmp(bytes.data(), encode({}).data(), sizeof(std::uint32_t)) == 0;
    if (there <= 0) return {};
    const auto deadline = Deadline::after(std::chrono::seconds(5));
    if (is_frame) {
      const auto header = decode_frame(std::span<const std::byte, kFrameBytes>(bytes));
      bytes.resize(kFrameBytes + header.length);
    } else {
      bytes.resize(static_cast<std::size_t>(there));
    }
    receive_all(from, bytes, deadline);
    return bytes;
  }
  bool forward(const Fd& from, const Fd& to, std::mt19937& random, bool is_reply) {
    bool is_frame = false;
    errno = 0;
    const auto bytes = receive_piece(from, is_frame);
    if (bytes.empty()) return errno == EAGAIN;
    if (is_reply && swallows_) return true;
    const auto happens = [&](unsigned one_in) {
      const bool does = is_frame && one_in != 0 && random() % one_in == 0;
      if (does) ++num_faults_;
      return does;
    };
    if (happens(faults_.cut_one_in)) return false;
    const int times = happens(faults_.repeat_one_in) ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      if (!send_whole(to.get(), bytes, Deadline::after(std::chrono::seconds(5)))) return false;
    }
    return true;
  }

  const Faults faults_;
  const Fd listener_;
  Endpoint to_;
  std::atomic<int> num_faults_{0};
  std::atomic<bool> swallows_{false};
  std::jthread thread_;
};

}  // namespace paceline::rpc::testing_job
