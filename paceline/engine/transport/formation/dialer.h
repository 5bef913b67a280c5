#pragma once

// Connects to the lower ranks while a group forms, many at the same time: the other end of
// acceptor.h. A peer's control channel comes first, the others once that stands.
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
  std::string description;  // for messages
  int num_channels = kNumChannels;
  std::string unix_name;  // its door on this host; empty: it is called over TCP
  Endpoint tcp;
  std::string context;  // of the handshake
  HandshakeHalf::Keys keys = HandshakeHalf::Keys::kNone;
};

// One call to a peer's door while a group forms, until the channel stands. Never waits.
//
// A rank listens before others know its address, so one that refuses for some seconds is dead. A
// rank that is turned away in the handshake calls again, for up to 30 s: the other end may have had
// too many callers, or was slow.
class Dial {
 public:
  // `rank` is this rank. `callee` and `secret` must outlive this object.
  Dial(int rank, const Callee& callee, Channel channel, const Secret& secret);

  const Callee& callee() const { return callee_; }
  Channel channel() const { return channel_; }
  // What must be polled, for at most time_left().
  pollfd entry() const;
  std::chrono::nanoseconds time_left() const;
  // True when the channel stands. Error(kPeerLost) for a peer that is dead, kInvalid for one that
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

  // From one to the next: waiting until `begins_`, connecting by `attempt_`, shaking hands.
  Deadline begins_ = Deadline::after(std::chrono::nanoseconds(0));
  std::optional<ConnectAttempt> attempt_;
  std::optional<ClientHandshake> handshake_;
  Fd socket_;         // once connected
  SendQueue unsent_;  // of what it has to say

  Deadline connect_until_, call_until_;
  Milliseconds connect_pause_, call_pause_;
};

// All calls of a rank.
class Dialer {
 public:
  // More would only wait at the other ends.
  static constexpr std::size_t kMostAtOnce = 64;

  struct Caller {
    int rank = 0;
    std::string name;  // for messages
  };
  // `callees` are called in this order. `secret` must outlive this object; `group` is for messages.
  Dialer(Caller self, std::vector<Callee> callees, const Secret& secret, std::string group);
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  // Adds what must be polled, for at most time_left().
  void add_to(std::vector<pollfd>& entries);
  std::chrono::nanoseconds time_left() const;
  // Continues the calls that are ready, without waiting. Requires: `entries` are those that
  // add_to() was last called with, polled since; others may stand behind them. Errors as
  // Dial::go_on(), which name the peer.
  std::vector<NewChannel> serve(std::span<const pollfd> entries);

 private:
  bool go_on(Dial& call, bool is_ready) const;

  const Caller self_;
  const std::vector<Callee> callees_;
  const Secret& secret_;
  const std::string group_;
  std::deque<std::pair<const Callee*, Channel>> waiting_;
  std::list<Dial> calls_;
  std::size_t first_entry_ = 0;  // of the calls', in their order
};

}  // namespace paceline
