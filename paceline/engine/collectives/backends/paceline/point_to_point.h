#pragma once

// send and recv. A message is matched by sender and tag, in the order of sending. All messages of a
// group are moved together, so that a send and a receive never wait for each other. The threads
// that wait for messages move them; if no thread waits, a thread of the group does, which is
// started when it is first needed. If the ring of a rank of this host has room, a small message to
// that rank is in the ring when the sending call returns.
//
// A message without a receive is kept, up to MessageQueues::kMaxUnexpectedBytes per group; beyond
// that its sender waits. If a group ends without an error, it warns about messages that were never
// received.
//
// Thread safety: send(), receive(), progress() and wake() may be called from any thread.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/paceline/message_queues.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"

namespace paceline {

class PointToPoint : public Progress, public std::enable_shared_from_this<PointToPoint> {
 public:
  // `memory` is passed to MessageStreams. Requires: `mesh` lives until close() has returned.
  PointToPoint(Mesh& mesh, RingMemory memory);
  ~PointToPoint() override { close(); }
  // Fails all operations under way with Error(kAborted), and returns once no thread moves messages
  // any more. Only progress() may be called afterwards.
  void close();

  WorkPtr send(const PointToPointCall& call, Deadline deadline);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline);
  void progress(const Work& work, Deadline limit) override;
  // Wakes sleeping threads, so that they check now whether the mesh has failed.
  void wake() { streams_.wake(); }

 private:
  // All functions except run() require that mutex_ is held; functions with a parameter `lock`
  // require that `lock` holds it.
  bool take_at_once(std::unique_lock<std::mutex>& lock, const PointToPointCall& call);
  WorkPtr taken_from(int peer);
  WorkPtr begin(std::unique_lock<std::mutex> lock, WorkPtr work, bool is_blocking);
  void wait_for(std::unique_lock<std::mutex>& lock, const Work& work, Deadline limit,
                bool is_blocking);
  void move_until_done(std::unique_lock<std::mutex>& lock, const Work& work, Deadline limit,
                       bool is_blocking);
  void run_wait_check(std::unique_lock<std::mutex>& lock);
  void finish_call(std::unique_lock<std::mutex> lock);
  void settle_between_moves(std::unique_lock<std::mutex>& lock);
  std::weak_ptr<Progress> helper(const PointToPointCall& call);
  bool has_unattended() const;
  void give_to_thread();
  void run(const std::stop_token& stop);
  bool pump_all(bool takes_unexpected, const Work* until = nullptr);
  void check_failures();
  void sleep(std::unique_lock<std::mutex>& lock, Deadline limit);
  template <class Action>
  void guarded(Action&& action);
  void fail_all(const Error& error);

  Mesh& mesh_;
  const OwnerProcess owner_;
  const int most_spins_;
  std::mutex mutex_;  // guards everything below
  // The Works of messages that completed at once: one for all sends, and one per peer for all
  // receives.
  const WorkPtr sent_;
  std::vector<WorkPtr> taken_;
  MessageStreams streams_;
  MessageQueues queues_;
  std::optional<Error> failure_;
  bool is_closed_ = false;
  bool somebody_sleeps_ = false;  // a thread sleeps, and wake() wakes it
  unsigned sent_at_once_ = 0;
  int callers_ = 0;  // number of threads that wait for a message, and move all messages
  bool has_idle_thread_ = false;  // the thread waits until operations are given to it
  // Tells the thread that this object has been destroyed on the thread itself: a function or an
  // object of the program may own the group.
  const std::shared_ptr<bool> is_gone_ = std::make_shared<bool>(false);
  // Signals that operations are given to the thread, or that callers_ has dropped to 0.
  std::unique_ptr<std::condition_variable> changed_ = std::make_unique<std::condition_variable>();
  std::jthread thread_;
};

}  // namespace paceline
