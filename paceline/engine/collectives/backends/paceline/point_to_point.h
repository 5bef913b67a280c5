#pragma once

// send and recv. A message is matched by sender and tag, in the order of sending. All of a group's
// messages are moved together, so that a send and a receive never wait for each other: by the
// threads that wait for one of them, and when none does by a thread of the group's, started when it
// is needed. A small message to a rank of this host is there when the call that sends it returns.
//
// A message that has not been asked for yet is kept, up to MessageQueues::kMaxUnexpectedBytes per
// group; beyond that its sender waits. One that was never asked for when the group ends in order is
// a warning.
//
// Thread safety: send(), receive() and progress() may be called from any thread.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/paceline/message_queues.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"

namespace paceline {

class PointToPoint : public Progress, public std::enable_shared_from_this<PointToPoint> {
 public:
  // `memory` as MessageStreams has it. Requires: `mesh` outlives this object, or close().
  PointToPoint(Mesh& mesh, RingMemory memory);
  ~PointToPoint() override { close(); }
  // Fails what is under way with Error(kAborted), and returns when no thread moves anything any
  // more. Nothing but progress() may be called afterwards.
  void close();

  WorkPtr send(const PointToPointCall& call, Deadline deadline);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline);
  void progress(const Work& work, Deadline limit) override;
  // Makes sleeping threads look at the mesh's failure now.
  void wake() { streams_.wake(); }

 private:
  // All but run() require that mutex_ is held; those with `lock`, by it.
  bool take_at_once(std::unique_lock<std::mutex>& lock, const PointToPointCall& call);
  WorkPtr taken_from(int peer);
  WorkPtr begin(std::unique_lock<std::mutex> lock, WorkPtr work, bool is_blocking);
  void wait_for(std::unique_lock<std::mutex>& lock, const Work& work, Deadline limit);
  void move_until_done(std::unique_lock<std::mutex>& lock, const Work& work, Deadline limit);
  void leave(std::unique_lock<std::mutex> lock);
  std::weak_ptr<Progress> helper(const PointToPointCall& call);
  bool is_left() const;
  void leave_to_thread();
  void run(const std::stop_token& stop);
  bool pump_all(bool takes_unexpected, const Work* until = nullptr);
  void look_around();
  void sleep(std::unique_lock<std::mutex>& lock, Deadline limit);
  template <class Action>
  void guarded(Action&& action);
  void fail_all(const Error& error);

  Mesh& mesh_;
  const OwnerProcess owner_;
  const int most_spins_;
  std::mutex mutex_;  // guards everything below
  // The Work of every message that was sent at once; by peer, that of those that were taken at
  // once.
  const WorkPtr sent_;
  std::vector<WorkPtr> taken_;
  MessageStreams streams_;
  MessageQueues queues_;
  std::optional<Error> failure_;
  bool is_closed_ = false;
  bool somebody_sleeps_ = false;  // and is woken by wake()
  unsigned sent_at_once_ = 0;
  int callers_ = 0;               // that wait for a message, and move all
  bool has_idle_thread_ = false;  // it wants to be told when something is left
  // This object, if what a call kept alive owned it: for the thread.
  const std::shared_ptr<bool> is_gone_ = std::make_shared<bool>(false);
  // Something is left to the thread, or no other thread is left in here.
  std::unique_ptr<std::condition_variable> left_ = std::make_unique<std::condition_variable>();
  std::jthread thread_;
};

}  // namespace paceline
