#pragma once

// send and recv. A message is matched by sender and tag, in the order of sending. One thread,
// started by the first call, moves all of a group's messages over the point-to-point channels, so
// that a send and a receive never wait for each other.
//
// A message that nobody asked for yet is kept, up to kMaxUnexpectedBytes per group; beyond that its
// sender waits. One that nobody has asked for when the group ends in order is a warning.
//
// Thread safety: send() and receive() may be called from any thread.

#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "paceline/collectives/backend.h"
#include "paceline/core/owner_process.h"
#include "paceline/transport/mesh.h"
#include "paceline/transport/message.h"

namespace paceline {

class PointToPoint {
 public:
  static constexpr std::size_t kMaxUnexpectedBytes = 64 << 20;

  // Requires: `mesh` outlives this object.
  explicit PointToPoint(Mesh& mesh);
  // Fails what is under way with Error(kAborted).
  ~PointToPoint();

  WorkPtr send(const PointToPointCall& call, Deadline deadline);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline);
  // Makes the thread look at the mesh's failure now.
  void wake();

 private:
  struct Outgoing {
    PointToPointCall call;
    MessageHeader header;
    Deadline deadline;
    WorkPtr work;
    std::size_t sent = 0;
  };
  struct Posted {
    PointToPointCall call;
    Deadline deadline;
    WorkPtr work;
  };
  struct Unexpected {
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  // What is being read from one peer.
  struct Incoming {
    MessageHeader header;
    std::size_t got = 0;                // of header and payload together
    std::optional<Posted> receive;      // where the payload goes, or
    std::vector<std::byte> unexpected;  // here
    bool accepted = false;              // the header is read and has a place
    bool ended = false;                 // the peer sends nothing more
  };

  void enqueue();
  void run(std::stop_token stop);
  bool pump();
  bool pump_send(int peer);
  bool pump_receive(int peer);
  bool read_header(int peer, Incoming& incoming);
  bool accept_header(int peer, Incoming& incoming);
  void finish_message(int peer, Incoming& incoming);
  void deliver_unexpected(Posted& posted);
  void check_deadlines();
  void require_senders() const;
  bool is_pending() const;
  void fail_all(const Error& error);
  void warn_of_unreceived() const;
  std::optional<MessageHeader> next_unreceived(int peer) const;
  void require_matching(int peer, const MessageHeader& header, const PointToPointCall& call) const;
  void wait_for_peers();

  Mesh& mesh_;
  const OwnerProcess owner_;
  std::mutex mutex_;  // guards everything below
  std::vector<std::deque<Outgoing>> sends_;
  std::list<Posted> receives_;
  std::vector<Incoming> incoming_;
  std::vector<std::deque<Unexpected>> unexpected_;
  std::size_t unexpected_bytes_ = 0;
  std::optional<Error> failure_;
  std::jthread thread_;
};

}  // namespace paceline
