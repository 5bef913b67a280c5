#pragma once

// A rank's knowledge of the other ranks while a group forms: their addresses, whether all ranks
// made the same choices, and which ranks gave up, died or left.
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

// Every rank compares its own choices with every address that it fetches, before it connects.
// Error(kInvalid) names `peer` and the choice that differs: members, transport, encryption or
// streams.
void require_agreement(const ConnectOptions& mine, int peer, const PeerAddress& theirs);

using LookAround = std::function<void(const std::vector<int>& missing)>;

// Fetches the addresses of all ranks, in rank order; `own` is the address that this rank published.
// While ranks are missing, `look_around` is called with the missing ranks: once a second, or
// several times a second if there is a parent group to check. `look_around` may throw.
// Error(kInvalid) if an address disagrees with this rank's choices (require_agreement()), about a
// second after that address was published, whichever ranks are still missing. Error(kTimeout) names
// a rank that did not arrive.
std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline, const LookAround& look_around);

// Failures while a group forms. A rank that gives up tells the others. A waiting rank finds out
// that another rank has died, given up or left: over the connections that exist, from published
// notices (ConnectOptions::give_up), or from the parent group.
class FormationWatch {
 public:
  // How long to look for a published reason after this rank has itself seen a failure.
  static constexpr std::chrono::milliseconds kNoticeWait{200};

  // `describe` names a rank that is connected. `options` must outlive this object.
  FormationWatch(const ConnectOptions& options, std::function<std::string(int peer)> describe);

  // Tells the ranks that `wire` connects, and also the others (ConnectOptions::give_up) unless
  // `error` is a timeout. Call it while the connections are still open, so that a rank that sees
  // them close can read why. `wire` may be null.
  void give_up(Wire* wire, const Error& error) const;

  // The following functions throw Error(kPeerLost) or Error(kAborted) for a failure that they find.

  // Looks for a published failure, for at most `wait`.
  void require_nobody_gave_up(std::chrono::milliseconds wait) const;
  // Called while ranks are missing: checks the published failures about once a second, and the
  // parent group at every call; warns once, after 10 s, which ranks are missing.
  void look(const std::vector<int>& missing);
  // Checks, by peeking, the bytes that one peer or every peer has sent. Nothing is consumed,
  // because later bytes belong to the mesh. Requires: the peer is connected.
  void require_connected(Wire& wire, int peer);
  void require_connected_peers(Wire& wire);

  // Adds the connected control channels of the peers that have not said goodbye; returns the peers
  // of the added entries.
  std::vector<int> add_lifelines(const SocketWire& sockets, std::vector<pollfd>& entries) const;

 private:
  void look_after_parent(const std::vector<int>& missing);
  void warn_of_slow_forming(const std::vector<int>& missing);

  const ConnectOptions& options_;
  const std::function<std::string(int peer)> describe_;
  std::vector<bool> left_;  // peers that said goodbye
  Deadline next_look_;
  const Deadline warn_at_;
  bool has_warned_ = false;
  // The peers that left the parent group; each must connect to this rank by the given time.
  std::map<int, Deadline> left_parent_;
};

}  // namespace paceline
