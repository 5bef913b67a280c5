#pragma once

// send and recv. A message is matched by sender and tag, in the order of sending. All of a group's
// messages are moved together, so that a send and a receive never wait for each other: by the
// thread of a blocking call while it waits, and by one of the group's, started when it is needed,
// what is left of asynchronous ones. A small message to a rank of this host is there when the call
// that sends it returns.
//
// A message that nobody asked for yet is kept, up to kMaxUnexpectedBytes per group; beyond that its
// sender waits. One that nobody has asked for when the group ends in order is a warning.
//
// Thread safety: send() and receive() may be called from any thread.

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "paceline/collectives/backend.h"
#include "paceline/core/owner_process.h"
#include "paceline/transport/mesh.h"
#include "paceline/transport/message.h"
#include "paceline/transport/message_streams.h"

namespace paceline {

class PointToPoint {
 public:
  static constexpr std::size_t kMaxUnexpectedBytes = 64 << 20;

  // Requires: `mesh` outlives this object.
  explicit PointToPoint(Mesh& mesh);
  // MessageStreams::use(); before the first message.
  void use(std::shared_ptr<SharedBlocks> blocks, std::size_t offset) {
    streams_.use(std::move(blocks), offset);
  }
  // Fails what is under way with Error(kAborted).
  ~PointToPoint();

  WorkPtr send(const PointToPointCall& call, Deadline deadline);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline);
  // Makes who sleeps look at the mesh's failure now.
  void wake() { streams_.wake(); }

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

  // All but run() require that mutex_ is held; those with `lock`, by it.
  WorkPtr move(std::unique_lock<std::mutex>& lock, WorkPtr work, bool is_blocking);
  void move_until_done(std::unique_lock<std::mutex>& lock, const Work& work);
  bool is_left() const;
  void leave_to_thread();
  void run(const std::stop_token& stop);
  bool pump_all();
  void look_around();
  void sleep(std::unique_lock<std::mutex>& lock);
  template <class Action>
  void guarded(Action&& action);
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
  void let_go(PointToPointCall& call);
  void fail_all(const Error& error);
  void warn_of_unreceived();
  std::optional<MessageHeader> next_unreceived(int peer);
  void require_matching(int peer, const MessageHeader& header, const PointToPointCall& call) const;

  Mesh& mesh_;
  const OwnerProcess owner_;
  const int most_spins_;
  std::mutex mutex_;  // guards everything below
  MessageStreams streams_;
  std::vector<std::deque<Outgoing>> sends_;
  std::list<Posted> receives_;
  std::vector<Incoming> incoming_;
  std::vector<std::deque<Unexpected>> unexpected_;
  std::size_t unexpected_bytes_ = 0;
  std::optional<Error> failure_;
  bool somebody_sleeps_ = false;                // and is woken by wake()
  int callers_ = 0;                             // of blocking calls, who move messages
  std::vector<std::shared_ptr<void>> dropped_;  // what calls that ended kept alive
  // This object, if what a call kept alive owned it: for the thread.
  const std::shared_ptr<bool> is_gone_ = std::make_shared<bool>(false);
  // Something is left to the thread.
  std::unique_ptr<std::condition_variable> left_ = std::make_unique<std::condition_variable>();
  std::jthread thread_;
};

}  // namespace paceline
