#include "paceline/engine/collectives/backends/paceline/point_to_point.h"

#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {
namespace {

constexpr std::chrono::milliseconds kPollSlice{10};
// A thread moves messages in turns of at most kPumpsPerTurn rounds over the peers, and releases the
// mutex between turns. Even if bytes move all the time, it checks deadlines at least once in
// kTurnsPerCheck turns. While nothing moves, it reads the clock once in kTurnsPerClock turns.
constexpr int kPumpsPerTurn = 64;
constexpr int kTurnsPerCheck = 256;
constexpr int kTurnsPerClock = 64;
constexpr unsigned kSendsPerPump = 16;
// How many rounds in a row may move nothing before a call sleeps.
constexpr int kMessageSpins = 1500;
constexpr int kMessageSpinsWhenSharingCores = 20;
// When no call moves the group's messages, the group's thread waits this long before it begins to
// move them: the caller of an asynchronous operation often waits for a message next, and while it
// waits, it moves all messages of the group.
constexpr std::chrono::microseconds kPatience{100};

class Asleep {
 public:
  Asleep(std::unique_lock<std::mutex>& lock, bool& somebody_sleeps)
      : lock_(lock), somebody_sleeps_(somebody_sleeps) {
    somebody_sleeps_ = true;
    lock_.unlock();
  }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;
  ~Asleep() {
    lock_.lock();
    somebody_sleeps_ = false;
  }

 private:
  std::unique_lock<std::mutex>& lock_;
  bool& somebody_sleeps_;
};

class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex>& lock_;
};

// A completed Work, for messages that needed no waiting; many messages may share it.
WorkPtr completed_work(int source_rank) {
  auto work = std::make_shared<Work>([] { return std::string("a message"); });
  work->complete(nullptr, source_rank);
  return work;
}

}  // namespace

PointToPoint::PointToPoint(Mesh& mesh, RingMemory memory)
    : mesh_(mesh),
      most_spins_(mesh.oversubscribed() ? kMessageSpinsWhenSharingCores : kMessageSpins),
      sent_(completed_work(-1)),
      taken_(static_cast<std::size_t>(mesh.world_size())),
      streams_(mesh, std::move(memory)),
      queues_(mesh, streams_) {}

void PointToPoint::close() {
  if (!owner_.is_this()) {
    // A child of fork() has no thread to join, and destroying a condition variable on which the
    // parent's thread waited would never return.
    if (thread_.joinable()) thread_.detach();
    [[maybe_unused]] const auto* const waited_on = changed_.release();
    return;
  }
  std::jthread thread;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    if (!failure_ && !mesh_.failed()) queues_.warn_of_unreceived();
    is_closed_ = true;  // from now on the thread is not started again
    fail_all(Error(ErrorCode::kAborted,
                   fmt::format("{}: group {} was destroyed with a send or receive under way",
                               mesh_.self(), mesh_.name()),
                   {.group = mesh_.name()}));
    thread = std::move(thread_);
    thread.request_stop();
  }
  changed_->notify_all();
  wake();
  if (thread.get_id() == std::this_thread::get_id()) {
    *is_gone_ = true;
    thread.detach();
  } else if (thread.joinable()) {
    thread.join();
  }
  std::unique_lock lock(mutex_);
  changed_->wait(lock, [&] { return callers_ == 0; });
  auto ended = queues_.take_ended();
  lock.unlock();
  ended.settle();
}

WorkPtr PointToPoint::send(const PointToPointCall& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  if (queues_.send_at_once(call)) {
    // A rank that only sends must receive other ranks' messages now and then.
    if (++sent_at_once_ % kSendsPerPump == 0) guarded([&] { queues_.pump(false); });
    finish_call(std::move(lock));
    return sent_;
  }
  return begin(std::move(lock), queues_.send(call, deadline, helper(call)), call.is_blocking);
}

WorkPtr PointToPoint::receive(const PointToPointCall& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  if (call.is_blocking && take_at_once(lock, call)) return taken_from(call.peer);
  WorkPtr work;
  if (!failure_) guarded([&] { work = queues_.receive(call, deadline, helper(call)); });
  if (work && !work->is_completed()) {
    return begin(std::move(lock), std::move(work), call.is_blocking);
  }
  const auto failure = failure_;
  finish_call(std::move(lock));
  if (!work) throw Error(*failure);
  return work;
}

// Spins for a small message, while no other operation is under way.
bool PointToPoint::take_at_once(std::unique_lock<std::mutex>& lock, const PointToPointCall& call) {
  auto how = MessageQueues::AtOnce::kNotYet;
  for (int spins = 0; spins < most_spins_ && !failure_ && !mesh_.failed(); ++spins) {
    guarded([&] { how = queues_.receive_at_once(call); });
    if (how != MessageQueues::AtOnce::kNotYet) break;
    lock.unlock();
    spin_pause();
    lock.lock();
  }
  return how == MessageQueues::AtOnce::kTaken;
}

WorkPtr PointToPoint::taken_from(int peer) {
  WorkPtr& work = taken_[static_cast<std::size_t>(peer)];
  if (!work) work = completed_work(peer);
  return work;
}

// The Progress of an asynchronous call, which Work::wait() calls; empty for a blocking call.
std::weak_ptr<Progress> PointToPoint::helper(const PointToPointCall& call) {
  return call.is_blocking ? std::weak_ptr<Progress>() : weak_from_this();
}

WorkPtr PointToPoint::begin(std::unique_lock<std::mutex> lock, WorkPtr work, bool is_blocking) {
  if (is_blocking) {
    wait_for(lock, *work, Deadline::never(), true);
  } else {
    pump_all(false);
    if (somebody_sleeps_) wake();  // the sleeping thread must wait for this message as well
  }
  finish_call(std::move(lock));
  return work;
}

void PointToPoint::progress(const Work& work, Deadline limit) {
  if (!owner_.is_this()) return;
  std::unique_lock lock(mutex_);
  if (is_closed_) return;
  wait_for(lock, work, limit, false);
  finish_call(std::move(lock));
}

// Ends a call: gives pending operations to the group's thread, and settles those that have ended.
// The program's functions and objects may own the group, which is then destroyed in this function.
void PointToPoint::finish_call(std::unique_lock<std::mutex> lock) {
  if (has_unattended()) give_to_thread();
  if (is_closed_ && callers_ == 0) changed_->notify_all();
  if (!queues_.has_ended()) return;
  auto ended = queues_.take_ended();
  lock.unlock();
  ended.settle();
}

// Settles the operations that have ended. Meanwhile this thread does not count as a caller: the
// program's functions and objects may own the group and destroy it, and close() waits for all
// callers.
void PointToPoint::settle_between_moves(std::unique_lock<std::mutex>& lock) {
  --callers_;
  auto ended = queues_.take_ended();
  lock.unlock();
  ended.settle();
  lock.lock();
  ++callers_;
}

void PointToPoint::wait_for(std::unique_lock<std::mutex>& lock, const Work& work, Deadline limit,
                            bool is_blocking) {
  ++callers_;
  move_until_done(lock, work, limit, is_blocking);
  --callers_;
}

// Returns early if another thread already sleeps: that thread then moves the message. For a
// blocking call, this function runs the thread's WaitCheck; for other calls, Work::wait() does.
void PointToPoint::move_until_done(std::unique_lock<std::mutex>& lock, const Work& work,
                                   Deadline limit, bool is_blocking) {
  int spins = 0;
  Vigil vigil;
  for (int turn = 1;; ++turn) {
    const bool has_moved = pump_all(spins >= most_spins_, &work);
    if (failure_ || work.is_completed()) return;
    if ((has_moved || turn % kTurnsPerClock == 1) && vigil.sees_passed(limit)) return;
    if (has_moved) spins = 0;
    if (turn % kTurnsPerCheck == 0 && has_moved) check_failures();
    if (queues_.has_ended()) {
      settle_between_moves(lock);
      continue;
    }
    if (++spins <= most_spins_ && !mesh_.failed()) {
      lock.unlock();
      spin_pause();
      lock.lock();
      continue;
    }
    // Other threads may complete the message, or go to sleep, during the check.
    if (is_blocking && WaitCheck::is_set()) run_wait_check(lock);
    if (failure_ || work.is_completed()) return;
    if (somebody_sleeps_) {
      wake();
      return;
    }
    vigil.look();
    check_failures();
    if (!failure_) sleep(lock, limit);
  }
}

// If the check throws, the group fails, because the operation must not go on after its call.
void PointToPoint::run_wait_check(std::unique_lock<std::mutex>& lock) {
  guarded([&] {
    const Unlocked unlocked(lock);
    WaitCheck::run();
  });
}

// Whether operations are pending that no other thread moves.
bool PointToPoint::has_unattended() const {
  return callers_ == 0 && !is_closed_ && !somebody_sleeps_ && !failure_ && queues_.is_pending();
}

// If the thread cannot be started, the operations fail: their buffers may be freed after the call.
void PointToPoint::give_to_thread() {
  if (!thread_.joinable()) {
    guarded([&] {
      thread_ = start_thread("paceline-p2p", [this](std::stop_token stop) { run(stop); });
    });
  }
  if (has_idle_thread_) changed_->notify_one();
}

// The function of the group's thread. settle() calls the program's functions and drops its objects,
// which may own the group; the group is then destroyed on this thread.
void PointToPoint::run(const std::stop_token& stop) {
  const auto is_gone = is_gone_;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queues_.has_ended()) {
      auto ended = queues_.take_ended();
      lock.unlock();
      ended.settle();
      if (*is_gone) return;
      lock.lock();
    }
    has_idle_thread_ = true;
    changed_->wait(lock, [&] { return stop.stop_requested() || has_unattended(); });
    has_idle_thread_ = false;
    changed_->wait_for(lock, kPatience, [&] { return stop.stop_requested() || !has_unattended(); });
    if (stop.stop_requested()) return;
    Vigil vigil;
    while (has_unattended() && !queues_.has_ended() && !stop.stop_requested()) {
      const bool has_moved = pump_all(true);
      vigil.look();
      check_failures();
      if (!has_unattended()) break;
      if (has_moved) {
        lock.unlock();  // callers may continue
        std::this_thread::yield();
        lock.lock();
      } else {
        sleep(lock, Deadline::never());
      }
    }
  }
}

// Moves bytes until none can move, `until` has completed, or kPumpsPerTurn rounds are over. Returns
// whether any bytes moved.
bool PointToPoint::pump_all(bool takes_unexpected, const Work* until) {
  bool has_moved = false;
  guarded([&] {
    for (int i = 0; i < kPumpsPerTurn && !failure_ && queues_.pump(takes_unexpected); ++i) {
      has_moved = true;
      if (until != nullptr && until->is_completed()) break;
    }
  });
  return has_moved;
}

// Checks for everything that ends a wait without a message: failures, and expired deadlines.
void PointToPoint::check_failures() {
  guarded([&] {
    queues_.require_senders();
    queues_.check_deadlines();
    if (queues_.is_pending()) mesh_.throw_if_failed();
  });
}

// Runs `action`. If it fails, all messages under way and all later ones fail with the same error.
template <class Action>
void PointToPoint::guarded(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    mesh_.abort(error);
    fail_all(error);
  } catch (...) {  // for example, out of memory for a message
    const Error cause(ErrorCode::kSystem,
                      fmt::format("{}: moving the messages of group {} failed: {}", mesh_.self(),
                                  mesh_.name(), describe_current_exception()));
    mesh_.abort(cause);
    fail_all(cause);
  }
}

void PointToPoint::fail_all(const Error& error) {
  if (!failure_) failure_ = error;
  queues_.fail_all(error);
}

// Sleeps until something can be moved, for at most a slice. Other threads may move messages
// meanwhile.
void PointToPoint::sleep(std::unique_lock<std::mutex>& lock, Deadline limit) {
  guarded([&] {
    std::vector<Interest> interests = queues_.interests();
    if (!streams_.prepare_to_sleep(interests)) return;
    {
      const Asleep asleep(lock, somebody_sleeps_);
      streams_.sleep(interests, std::chrono::milliseconds(limit.poll_timeout_ms(kPollSlice)));
    }
    streams_.awake(interests);
  });
}

}  // namespace paceline
