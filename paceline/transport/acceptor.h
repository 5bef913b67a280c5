#pragma once

// The callers at a rank's door while a group forms. Each proves that it knows the secret and says
// which channel of which rank it is, all at the same time, so that silent strangers hold nobody up.
// A caller that fails is disconnected with a warning.
//
// Thread safety: none.

#include <array>
#include <list>
#include <string>
#include <vector>

#include <poll.h>

#include "paceline/core/deadline.h"
#include "paceline/core/fd.h"
#include "paceline/core/handshake.h"
#include "paceline/core/secret.h"

namespace paceline {

// A caller that belongs to the group; what it says about itself is not yet checked.
struct Arrival {
  int rank = 0;
  int channel = 0;
  Fd socket;
  SessionKeys keys;  // of a connection that is to be encrypted
};

class Acceptor {
 public:
  struct Doors {
    Fd local, tcp;
    std::string local_context, tcp_context;  // of their handshakes
    bool encrypts_tcp = false;
  };
  // `secret` must outlive this object; `group` is for messages.
  Acceptor(Doors doors, const Secret& secret, std::string group);

  // Adds what must be polled.
  void add_to(std::vector<pollfd>& entries) const;
  // Serves everybody who is ready, without waiting.
  std::vector<Arrival> serve();

 private:
  static constexpr std::size_t kHelloSize = 8;  // rank and channel
  struct Caller {
    Fd socket;
    bool agrees_on_keys;
    ServerHandshake handshake;
    Deadline deadline;
    std::array<std::byte, kHelloSize> hello{};
    std::size_t got = 0;  // of the hello
  };

  void let_in(const Fd& listener, const std::string& context, bool agrees_on_keys);
  bool advance(Caller& caller);
  bool read_hello(Caller& caller);

  const Doors doors_;
  const Secret& secret_;
  const std::string group_;
  std::list<Caller> callers_;
};

}  // namespace paceline
