#pragma once

// A network that fails: a TCP relay between workers, in the process of the test. The relay changes
// a callee's entry in the store to its own address.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
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

#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/protocol/frame.h"

namespace paceline::rpc::testing_job {

// Replaces a worker's entry in the directory.
inline void write_entry(Store& store, const WorkerEntry& entry) {
  const auto bytes = write_message(entry).copy();
  store.set("rpc/worker/" + entry.name,
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

class Relay {
 public:
  // Faults, each of which happens to one frame in `one_in` on average (0: never). Frames of a
  // handshake are spared, because otherwise little else would be tested.
  struct Faults {
    unsigned cut_one_in = 0;     // the connection ends in both directions
    unsigned repeat_one_in = 0;  // the frame is sent twice
    unsigned lose_one_in = 0;    // the frame is not sent, but the next one is
    unsigned swap_one_in = 0;    // the frame is sent after the next one
    unsigned replay_one_in =
        0;  // a frame that passed before, perhaps on another connection, is sent first
    std::size_t bytes_per_s = 0;  // limit in each direction; 0: unlimited
  };
  enum class Way : std::uint8_t { kToCallee, kToCaller };

  // From now on, connections to `callee` pass through this relay. Requires: callers are on other
  // "hosts".
  Relay(const std::shared_ptr<Store>& store, const std::string& callee, Faults faults)
      : faults_(faults), listener_(listen_tcp({"127.0.0.1", 0})) {
    if (is_slow()) {  // so that the kernel's buffers are small compared with the messages
      const int bytes = 32 << 10;
      ::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    auto entry = Directory(store, kDefaultLease).find(callee).value();
    to_ = {entry.tcp_host, entry.tcp_port};
    entry.tcp_host = "127.0.0.1";
    entry.tcp_port = local_port(listener_);
    write_entry(*store, entry);
    thread_ = start_thread("relay", [this](const std::stop_token& stop) { run(stop); });
  }
  int num_faults() const { return num_faults_; }
  int num_connections() const { return num_connections_; }
  // The number of frames of this kind that have passed.
  int num_frames(FrameKind kind) const { return num_frames_[static_cast<std::uint8_t>(kind)]; }
  // All bytes that the first caller has sent so far.
  std::vector<std::byte> recording() const {
    const std::lock_guard lock(mutex_);
    return recording_;
  }
  // Cuts one direction: bytes wait, and arrive after the cut has ended.
  void cut(Way way, bool is_cut) { is_cut_[static_cast<std::size_t>(way)] = is_cut; }
  // Bytes in that direction are lost, without a sign to either end.
  void swallow(Way way, bool swallows) { swallows_[static_cast<std::size_t>(way)] = swallows; }

 private:
  using Clock = std::chrono::steady_clock;
  using Bytes = std::vector<std::byte>;
  static constexpr std::size_t kSlowPiece = 8 << 10;
  struct Direction {
    Fd from;
    Clock::time_point next{};  // when the next bytes may pass on a slow network
  };
  struct Link {
    std::array<Direction, 2> ways{};  // indexed by Way
    bool is_first = false;
  };

  bool is_slow() const { return faults_.bytes_per_s != 0; }
  bool is_due(const Link& link, Way way) const {
    const auto index = static_cast<std::size_t>(way);
    return !is_cut_[index] && Clock::now() >= link.ways[index].next;
  }
  static const Fd& from(const Link& link, Way way) {
    return link.ways[static_cast<std::size_t>(way)].from;
  }
  static const Fd& to(const Link& link, Way way) {
    return link.ways[1 - static_cast<std::size_t>(way)].from;
  }

  void run(const std::stop_token& stop) {
    std::mt19937 random(1);
    std::list<Link> links;
    while (!stop.stop_requested()) {
      std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& link : links) {
        for (const Way way : {Way::kToCallee, Way::kToCaller}) {
          const short events = is_due(link, way) ? POLLIN : 0;
          entries.push_back({.fd = from(link, way).get(), .events = events, .revents = 0});
        }
      }
      poll_for(entries, std::chrono::milliseconds(is_slow() ? 1 : 20));
      if (entries[0].revents != 0) {
        Fd caller(accept_one(listener_.get()));
        if (caller) {
          Link& link = links.emplace_back();
          link.is_first = ++num_connections_ == 1;
          link.ways[0].from = std::move(caller);
          link.ways[1].from = connect_tcp(to_, Deadline::after(std::chrono::seconds(5)));
        }
      }
      std::erase_if(links, [&](Link& link) {
        return !forward(link, Way::kToCallee, random) || !forward(link, Way::kToCaller, random);
      });
    }
  }

  void record(const Bytes& bytes) {
    const std::lock_guard lock(mutex_);
    recording_.insert(recording_.end(), bytes.begin(), bytes.end());
  }
  struct Piece {
    Bytes bytes;
    bool is_frame = false;
  };
  // The next frame, or the bytes of a handshake that have arrived; empty, with errno, if there are
  // none.
  static Piece receive_piece(const Fd& from) {
    Piece piece{.bytes = Bytes(kFrameBytes)};
    errno = 0;
    const ssize_t there = receive_some(from.get(), piece.bytes, MSG_PEEK);
    if (there <= 0) return {};
    piece.is_frame = there == static_cast<ssize_t>(kFrameBytes) &&
                     std::memcmp(piece.bytes.data(), encode({}).data(), sizeof(std::uint32_t)) == 0;
    piece.bytes.resize(static_cast<std::size_t>(there));
    if (piece.is_frame) {
      const auto frame = decode_frame(std::span<const std::byte, kFrameBytes>(piece.bytes));
      const bool in_parts = (frame.flags & Frame::kInParts) != 0;
      piece.bytes.resize(kFrameBytes + (in_parts ? 0 : frame.length));
    }
    receive_all(from, piece.bytes, Deadline::after(std::chrono::seconds(5)));
    return piece;
  }
  static bool send(const Fd& to, const Bytes& bytes) {
    return send_whole(to.get(), bytes, Deadline::after(std::chrono::seconds(5)));
  }

  // Returns false when the connection has ended.
  bool forward(Link& link, Way way, std::mt19937& random) {
    if (!is_due(link, way)) return true;
    if (is_slow()) return forward_slowly(link, way);
    const auto [bytes, is_frame] = receive_piece(from(link, way));
    if (bytes.empty()) return errno == EAGAIN;
    if (way == Way::kToCallee && link.is_first) record(bytes);
    if (is_frame) ++num_frames_[static_cast<std::size_t>(bytes[4])];
    if (swallows_[static_cast<std::size_t>(way)]) return true;
    const auto happens = [&, is_frame = is_frame](unsigned one_in) {
      return is_frame && one_in != 0 && random() % one_in == 0;
    };
    const auto note_fault = [&] { ++num_faults_; };
    const Fd& target = to(link, way);
    if (happens(faults_.cut_one_in)) {
      note_fault();
      return false;
    }
    if (happens(faults_.replay_one_in) && !earlier_.empty()) {
      note_fault();
      if (!send(target, earlier_)) return false;
    }
    if (is_frame && way == Way::kToCallee && random() % 10 == 0) earlier_ = bytes;
    if (happens(faults_.repeat_one_in)) {
      note_fault();
      if (!send(target, bytes)) return false;
    }
    const bool loses = happens(faults_.lose_one_in);
    if (loses || happens(faults_.swap_one_in)) {
      // With TCP nothing would show that the last frame of a connection is missing, so only a frame
      // with a successor is lost or swapped.
      const auto [next, is_next_frame] = receive_piece(from(link, way));
      if (!next.empty()) {
        note_fault();
        if (!send(target, next)) return false;
        if (loses) return true;
      }
    }
    return send(target, bytes);
  }
  bool forward_slowly(Link& link, Way way) {
    Direction& direction = link.ways[static_cast<std::size_t>(way)];
    Bytes bytes(kSlowPiece);
    const ssize_t got = receive_some(direction.from.get(), bytes);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    bytes.resize(static_cast<std::size_t>(got));
    direction.next = std::max(direction.next, Clock::now()) +
                     std::chrono::nanoseconds(std::chrono::seconds(1)) * got /
                         static_cast<std::int64_t>(faults_.bytes_per_s);
    return send(to(link, way), bytes);
  }

  const Faults faults_;
  const Fd listener_;
  Endpoint to_;
  std::atomic<int> num_faults_{0}, num_connections_{0};
  std::array<std::atomic<int>, 256> num_frames_{};
  std::array<std::atomic<bool>, 2> is_cut_{}, swallows_{};
  Bytes earlier_;             // only for the relay's thread
  mutable std::mutex mutex_;  // guards recording_
  Bytes recording_;
  std::jthread thread_;
};

}  // namespace paceline::rpc::testing_job
