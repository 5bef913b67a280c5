#pragma once

// The threads of a worker. Each of them can wait for sockets (epoll), and the thread that receives
// a request also runs its handler, which saves the time of a hand-over. Two rules keep a worker
// responsive, whatever its handlers do:
//
//  - One thread always waits for sockets: the last waiting thread wakes or starts another one
//    before it runs a task.
//  - A limited number of threads run tasks; the others leave tasks in the queue. The limit is one
//    thread at first, which is fastest for short tasks. Whenever no task has left the queue for 50
//    microseconds, threads asleep in a task no longer count; if there are none, the limit grows by
//    one, up to `num_threads`. Beyond that, it grows by one only every 50 milliseconds, up to
//    `max_threads` - 1. Once the queue is empty and at most `num_threads` tasks run, the limit is
//    one again. A thread with a Blocked, for example one that waits for a reply, does not count.
//
// So replies are received and leases are renewed even while all handlers are blocked.
//
// At most two threads wait for sockets, or one while another thread handles events. During a burst
// of events the waiting thread does not wait for sockets, because each message would wake it;
// instead it checks every 50 microseconds whether the burst has ended. All other threads rest until
// the last waiting thread has something to run.
//
// A thread that has served the same source several times in a row stays with that source: it blocks
// in a read of the socket and leaves all other sources to a second thread. So a caller that makes
// one call after another gets its replies as quickly as from a program that only reads one socket.
// The second thread checks on the first one every 50 microseconds. If all tasks are short, the
// interval grows up to 3.2 milliseconds, because a check delays the call that runs at that moment.
// If a task takes longer than the interval, the second thread takes over the source, because other
// calls may use the same connection.
//
// Thread safety: every method may be called from any thread. The threads share the ownership of the
// pool, so it may be destroyed on one of them.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::rpc {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    virtual void run() = 0;  // must not throw
  };
  // An object that has queued messages and sends them when the pool calls send().
  class Sender {
   public:
    virtual ~Sender() = default;
    virtual void send() = 0;  // must not throw

   private:
    friend class Pool;
    bool is_due_ = false;  // guarded by the pool's mutex
  };
  // A descriptor on which the pool waits for events.
  class Source {
   public:
    virtual ~Source() = default;
    virtual int descriptor() const = 0;
    // Called after an event: reads until nothing is left. One thread at a time calls it; it must
    // not throw.
    virtual void ready() = 0;
    // lets_stay(): whether a thread may stay with the source. wait_until_ready() waits for input
    // for a while and then does the work of ready(). It returns false if nothing arrived, or if the
    // pool should watch the source again.
    virtual bool lets_stay() const { return false; }
    virtual bool wait_until_ready() { return false; }
    // Tells the source whether the pool watches for its input.
    virtual void watch_input(bool /*watched*/) {}

   protected:
    // True once the other end has closed the connection, perhaps right after its last bytes: the
    // reading thread must read up to the end, because no other event announces the end.
    bool is_closed_there() const { return is_closed_there_; }

   private:
    friend class Pool;
    std::atomic<bool> is_closed_there_{false};
    enum class Stay : std::uint8_t { kNone, kReads, kRuns };  // the state of the thread that stays
    std::uint64_t id_ = 0;  // never reused, unlike descriptor numbers
    std::atomic<int> num_events_{0};
    std::atomic<Stay> stay_{Stay::kNone};
  };

  // One of the threads calls `housekeeping` about ten times a second; it must not throw.
  Pool(int num_threads, int max_threads, std::function<void()> housekeeping);
  ~Pool();
  void start();

  // Watches for `events` (EPOLLIN, EPOLLOUT) from now on, and always for the end of the connection.
  // change() also reports events that are already pending.
  void add(const std::shared_ptr<Source>& source, std::uint32_t events);
  void change(const Source& source, std::uint32_t events);
  void remove(const Source& source);

  // Queues a task for a thread of this pool. Tasks that ready() adds are collected and then queued
  // together; the thread that called ready() then runs the first of them.
  void run(std::shared_ptr<Task> task);
  void run(std::function<void()> task);
  // Called at the end of a task: queues `task` without waking another thread, because the calling
  // thread is about to take the next task from the queue.
  void run_next(std::shared_ptr<Task> task);

  // Makes `sender` send within about 100 microseconds, so that messages in quick succession are
  // sent together.
  void send_soon(const std::shared_ptr<Sender>& sender);
  // As above, for the end of a task that has queued a message. Returns false if the task must send
  // the message itself, because the task took long or because few other tasks wait.
  bool send_with_others(const std::shared_ptr<Sender>& sender);

  // While a Blocked exists, the thread that made it does not count as running its task.
  class Blocked {
   public:
    Blocked();
    ~Blocked();
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    Pool* const pool_;
  };

  // Prevents further tasks from beginning, and waits for running tasks until the deadline. Returns
  // false if some still run; their threads end by themselves later. It does not wait for the
  // calling thread if that belongs to the pool.
  bool stop(Deadline deadline);
  bool is_own_thread() const;

 private:
  struct Event {
    enum class Kind : std::uint8_t { kNone, kWake, kTime, kSource, kTakenOver } kind{};
    std::uint64_t source = 0;
    bool is_end = false;  // the source's connection has ended
  };
  struct Runner {
    pid_t thread = 0;
    bool is_asleep = false;  // at the last check, so its task does not count
  };
  using Senders = std::vector<std::shared_ptr<Sender>>;

  void serve();
  void start_thread_locked();
  bool bring_another_locked();
  void rest(std::unique_lock<std::mutex>& lock);
  bool run_tasks();
  std::shared_ptr<Task> next_task_locked(Senders& due);
  void add_received();
  Event wait_for_event();
  void set_active_locked(bool active);
  void raise_limit_if_stuck_locked();
  bool may_run_locked() const;
  bool mark_sleeping_locked();
  void add_due_locked(const std::shared_ptr<Sender>& sender);
  Senders take_due_locked(bool even_if_recent);
  static void send_all(const Senders& senders);
  void begin_running_locked();
  void end_running_locked();
  void attend(const std::shared_ptr<Source>& source);
  void go_on(Source& source);
  bool may_stay(const std::shared_ptr<Source>& source);
  void stay_with(const std::shared_ptr<Source>& source);
  bool take_over_locked();

  const int max_threads_;
  const std::function<void()> housekeeping_;
  const Fd epoll_, wake_, timer_;
  std::atomic<bool> stops_{false}, keeps_house_{false};

  std::mutex mutex_;  // guards the members below
  std::condition_variable thread_ended_, rest_ends_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources_;
  std::uint64_t last_id_;
  std::deque<std::shared_ptr<Task>> tasks_;
  Senders due_;  // the senders that must send soon
  std::chrono::steady_clock::time_point due_since_;
  std::uint64_t num_taken_ = 0, num_taken_before_ = 0;  // tasks taken, now and at the last check
  std::chrono::steady_clock::time_point
      moved_at_;                              // when a task last left the queue, as seen by a check
  const int usual_running_;                   // the usual limit of running tasks
  int max_running_;                           // the current limit
  std::uint64_t last_source_ = 0;             // the source of the last event
  int num_in_row_ = 0;                        // events of that source in a row
  std::shared_ptr<Source> stayed_with_;       // the source that a thread stays with, or null
  std::uint64_t turns_at_look_ = 0;           // num_turns_ at the last check
  std::chrono::microseconds look_at_stay_{};  // the interval between checks of stayed_with_
  int num_looks_at_stay_ = 0;
  int num_looking_ = 0;         // waiting threads that also check the queue, every 50 microseconds
  int num_looking_rarely_ = 0;  // as num_looking_, but less often
  int num_resting_ = 0, num_called_ = 0;  // resting threads; threads woken to wait for sockets
  int num_active_ = 0;  // threads that handle events, except threads that stay or are blocked
  std::uint64_t num_turns_ = 0;  // events and tasks taken so far
  int num_quiet_looks_ = 0;      // checks in a row that found nothing
  int num_waiting_ = 0;          // threads that wait for events
  std::vector<Runner> runners_;  // threads that run tasks
  std::vector<std::jthread> threads_;
  std::vector<std::thread::id> ended_;
};

}  // namespace paceline::rpc
