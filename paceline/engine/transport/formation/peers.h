#pragma once

// The other ranks while a group forms: their addresses, whether all chose alike, and which of them
// gave up, died or left.
//
// Thread safety: none.

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <poll.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/transport/formation/connect.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/socket_wire.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// Every rank compares its own choices with every address it finds, before it connects.
// Error(kInvalid) names `peer` and what it chose otherwise: members, transport, encryption,
// streams.
void require_agreement(const ConnectOptions& mine, int peer, const PeerAddress& theirs);

using LookAround = std::function<void(const std::vector<int>& missing)>;

// The addresses of all ranks, in their order; `own` is this rank's as it published it. While some
// are missing, calls `look_around` with them, which may throw: once a second, and as long as there
// is a parent to look after up to ten times. Error(kInvalid) when ranks name other members, chose
// other transports or only some of them encrypt: as soon as two of them show it, whichever others
// are missing; kTimeout names a rank that did not arrive.
std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline, const LookAround& look_around);

// While a group forms: a rank that gives up tells the others, and those that wait find out that
// a rank has died, given up or left, over the connections that exist, by what is published
// (ConnectOptions::give_up), or from the group that this one is made of.
class FormationWatch {
 public:
  // For the reason of what this rank has seen itself.
  static constexpr std::chrono::milliseconds kNoticeWait{200};

  // `describe` names a rank that is connected. `options` must outlive it.
  FormationWatch(const ConnectOptions& options, std::function<std::string(int peer)> describe);

  // Tells those that `wire` connects, and, unless this rank's time is over, the others. For as long
  // as the connections stand, so that a rank that sees them close can read why. `wire` may be null.
  void give_up(Wire* wire, const Error& error) const;

  // The next functions throw Error(kPeerLost) or Error(kAborted) for what they find.

  // Looks at the published failures, at most after `wait`.
  void require_nobody_gave_up(std::chrono::milliseconds wait) const;
  // Called while ranks are missing: checks the published failures about once a second, and the
  // parent group at every call; warns once, after 10 s, which ranks are missing.
  void look(const std::vector<int>& missing);
  // Looks without reading at what a peer, or each, has said: what comes after the group has formed
  // is the mesh's. Requires: it is connected.
  void require_connected(Wire& wire, int peer);
  void require_connected_peers(Wire& wire);

  // Adds the control channels that stand, but for those that have nothing more to say; returns
  // whose they are.
  std::vector<int> add_lifelines(const SocketWire& sockets, std::vector<pollfd>& entries) const;

 private:
  void look_after_parent(const std::vector<int>& missing);
  void warn_of_slow_forming(const std::vector<int>& missing);

  const ConnectOptions& options_;
  const std::function<std::string(int peer)> describe_;
  std::vector<bool> left_;  // said goodbye
  Deadline next_look_;
  const Deadline warn_at_;
  bool has_warned_ = false;
  std::map<int, Deadline> left_parent_;  // by when they must have been seen here
};

}  // namespace paceline
