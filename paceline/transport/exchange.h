#pragma once

// Moves messages to and from all peers of a mesh at the same time over their data sockets, without
// threads: the caller posts sends and receives, then runs the poll loop until what it needs has
// arrived. Per peer, messages keep their order.
//
// Every wait ends at the deadline or when the mesh fails. Thread safety: none; one executor owns
// it.

#include <deque>
#include <functional>
#include <vector>

#include "paceline/core/deadline.h"
#include "paceline/transport/mesh.h"
#include "paceline/transport/message.h"

namespace paceline {

class Exchange {
 public:
  // Called once a header has arrived, before its payload is read; throws to refuse it.
  using CheckHeader = std::function<void(int peer, const MessageHeader& header)>;

  explicit Exchange(Mesh& mesh);

  // Requires: `payload` stays valid until run_until_idle() returned.
  void post_send(int peer, const MessageHeader& header, std::span<const std::byte> payload);
  // Requires: `into` stays valid likewise; its size is what the header must announce.
  void post_receive(int peer, std::span<std::byte> into);

  // True when all receives posted so far from `peer` have completed.
  bool received_all(int peer) const;
  // The peers from which something is still expected.
  std::vector<int> waiting_for() const;

  // Runs until `done` says so. `check` judges headers. `on_slow` is called about every 10 ms while
  // nothing moves; it may throw.
  void run_until(const std::function<bool()>& done, const CheckHeader& check, Deadline deadline,
                 const std::function<void()>& on_slow);
  bool idle() const;
  // Forgets everything that was posted; after an error.
  void clear();

 private:
  struct Outgoing {
    MessageHeader header;
    std::span<const std::byte> payload;
    std::size_t sent = 0;  // of header and payload together
  };
  struct Incoming {
    MessageHeader header;
    std::span<std::byte> into;
    std::size_t got = 0;  // of header and payload together
  };
  struct Lane {
    std::deque<Outgoing> sends;
    std::deque<Incoming> receives;
  };

  bool pump_sends(int peer);
  bool pump_receives(int peer, const CheckHeader& check);
  bool pump_all(const CheckHeader& check);
  void wait_for_sockets(std::chrono::milliseconds limit);

  Mesh& mesh_;
  std::vector<Lane> lanes_;
};

}  // namespace paceline
