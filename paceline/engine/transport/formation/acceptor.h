#pragma once

// Accepts the connections of the higher ranks while a group forms, at this rank's "doors": its
// listening sockets. Each caller proves that it knows the secret, and names its rank and the
// channel. All callers are served at the same time, so that silent connections do not delay the
// group. A caller that fails is disconnected with a warning.
//
// Each door has at most kMaxStrangers connections that have not yet proved that they know the
// secret (strangers); the kernel's backlog holds the others. A handshake may take 3 s; while the
// door is full, a connection that has sent nothing is closed after 1 s. A caller that was merely
// slow may call again.
//
// Thread safety: none.

#include <array>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <poll.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/transport/socket_wire.h"

namespace paceline {

class Acceptor {
 public:
  struct Doors {
    Fd local, tcp;
    // The text that both ends' handshakes must share, for each door.
    std::string local_context, tcp_context;
    bool encrypts_tcp = false;
  };
  // `secret` must outlive this object. `group` is named in messages.
  Acceptor(Doors doors, const Secret& secret, std::string group);

  static constexpr std::size_t kMaxStrangers = 256;

  // Adds the descriptors to poll. Poll for a few tens of milliseconds only, because a full door
  // gets room again when handshakes time out.
  void add_to(std::vector<pollfd>& entries);
  // Serves every caller that is ready, without waiting. Requires: `entries` has been polled and
  // begins with the entries that the last add_to() received and added; others may follow.
  std::vector<NewChannel> serve(std::span<const pollfd> entries);

 private:
  static constexpr std::size_t kHelloSize = 8;  // the caller's rank and channel
  struct Caller {
    Fd socket;
    bool is_local;  // connected at the local door
    bool agrees_on_keys;
    ServerHandshake handshake;
    Deadline deadline;    // for the handshake; ignored once the caller has completed it
    Deadline first_word;  // for the first byte, while the door is full
    bool has_spoken = false;
    std::array<std::byte, kHelloSize> hello{};
    std::size_t got = 0;  // bytes of the hello received so far
    SendQueue unsent;     // answers to the caller
  };
  static constexpr std::size_t kNumDoors = 2;  // the local one first

  std::size_t num_strangers(bool is_local) const;
  const Fd& door(bool is_local) const { return is_local ? doors_.local : doors_.tcp; }
  std::vector<NewChannel> hear_callers(std::span<const pollfd> entries);
  void drop_silent_callers(bool is_local);
  void let_in(bool is_local);
  bool advance(Caller& caller);
  void answer(Caller& caller);
  bool read_hello(Caller& caller);

  const Doors doors_;
  const Secret& secret_;
  const std::string group_;
  std::list<Caller> callers_;
  std::size_t first_entry_ = 0;  // index of the doors' entries; the callers' entries follow
};

}  // namespace paceline
