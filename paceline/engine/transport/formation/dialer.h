#pragma once

// Connects to the lower ranks while a group forms, many at the same time: the other end of
// acceptor.h. A peer's control channel is connected first, then its other channels.
//
// Thread safety: none.

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/transport/socket_wire.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

struct Callee {
  int rank = 0;
  int in_world = 0;         // its rank in the world
  std::string description;  // names the peer in messages
  int num_channels = kNumChannels;
  std::string unix_name;  // the peer's Unix socket on this host; if empty, the call goes over TCP
  Endpoint tcp;
  std::string context;  // the text that both ends' handshakes must share
  HandshakeSide::Keys keys = HandshakeSide::Keys::kNone;
};

// Connects one channel to a peer while a group forms. No method waits.
//
// A rank listens before others know its address, so a peer that refuses connections for some
// seconds is dead. A rank that is turned away in the handshake calls again, for up to 30 s, because
// the other end may have had too many callers or may have been slow.
class Dial {
 public:
  // `rank` is this rank. `callee` and `secret` must outlive this object.
  Dial(int rank, const Callee& callee, Channel channel, const Secret& secret);

  const Callee& callee() const { return callee_; }
  Channel channel() const { return channel_; }
  // The descriptor to poll, for at most time_left().
  pollfd entry() const;
  std::chrono::nanoseconds time_left() const;
  // True once the channel is connected. Error(kPeerLost) if the peer is dead, kInvalid if the peer
  // is not a member of this group.
  bool go_on(bool is_ready);
  // Requires: go_on() returned true.
  NewChannel take();

 private:
  using Milliseconds = std::chrono::milliseconds;

  void begin();
  void go_on_connecting();
  void refused(int error);
  void shake_hands();
  void send();
  void turned_away(const Error& error);
  std::vector<std::byte> hello() const;
  Deadline connect_until() const;
  Deadline longest_connect(std::chrono::nanoseconds over_tcp) const;

  const int rank_;
  const Callee& callee_;
  const Channel channel_;
  const Secret& secret_;

  // A call waits until `begins_`, connects by `attempt_`, then shakes hands.
  Deadline begins_ = Deadline::after(std::chrono::nanoseconds(0));
  std::optional<ConnectAttempt> attempt_;
  std::optional<ClientHandshake> handshake_;
  Fd socket_;         // set once connected
  SendQueue unsent_;  // bytes that are still to be sent to the peer

  Deadline connect_until_, call_until_;
  Milliseconds connect_pause_, call_pause_;
};

// All calls that a rank makes.
class Dialer {
 public:
  // The most calls at the same time; more calls would only wait at the other ends.
  static constexpr std::size_t kMaxAtOnce = 64;

  struct Caller {
    int rank = 0;
    std::string name;  // names the calling rank in messages
  };
  // `callees` are called in this order. `secret` must outlive this object. `group` is named in
  // messages.
  Dialer(Caller self, std::vector<Callee> callees, const Secret& secret, std::string group);
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  // Adds the descriptors to poll, for at most time_left().
  void add_to(std::vector<pollfd>& entries);
  std::chrono::nanoseconds time_left() const;
  // Continues the calls that are ready, without waiting. Requires: `entries` has been polled and
  // begins with the entries that the last add_to() received and added; others may follow. Errors
  // are those of Dial::go_on(), and name the peer.
  std::vector<NewChannel> serve(std::span<const pollfd> entries);

 private:
  bool go_on(Dial& call, bool is_ready) const;

  const Caller self_;
  const std::vector<Callee> callees_;
  const Secret& secret_;
  const std::string group_;
  std::deque<std::pair<const Callee*, Channel>> waiting_;
  std::list<Dial> calls_;
  std::size_t first_entry_ = 0;  // index of the calls' entries, in the order of the calls
};

}  // namespace paceline
