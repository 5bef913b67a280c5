#pragma once

// A rank's calls to its peers while a group forms, many at the same time: the other end of
// acceptor.h. A peer's control channel comes first, the others once that stands.
//
// Thread safety: none.

#include <chrono>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/transport/dial.h"
#include "paceline/engine/transport/new_channel.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

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
