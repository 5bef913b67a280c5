#pragma once

// The threads of a worker. Any of them waits for sockets (epoll), and the thread that receives a
// request also runs its handler, so that no hand-over costs time. Two rules keep a worker
// responsive, whatever its handlers do:
//
//  - One thread always waits for sockets: the last one starts another before it runs a task.
//  - At most so many threads run tasks; the others leave tasks in the queue. It is one thread at
//    first, which is fastest for short tasks. When the queue has not moved for 100 microseconds,
//    tasks that are asleep do not count any more, and `num_threads` run; when it has not for much
//    longer, one more each time, up to a limit. Once the queue is empty it is one again. A task
//    that waits for a call of its own (Blocked) does not count.
//
// So replies are received and leases renewed also while all handlers are blocked.
//
// At most two threads wait, and one beside a thread that handles events. While that handles event
// after event, the other does not wait for sockets, where each message would wake it: it looks
// every 100 microseconds whether that still goes on. All others rest until the last one that waits
// has something to run.
//
// A thread that has served the same source several times in a row stays with it: it waits in a read
// of that socket and leaves the rest to the thread that waits for all. A caller that makes one call
// after another so finds its handler's thread as quickly as a program that only reads would be. The
// other thread looks every 100 microseconds meanwhile: if a task of the one that stays takes
// longer, it takes the source over, because other callers may use the same connection.
//
// Thread safety: all methods. The threads share the pool, so it may end on one of them.

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
  // Something that sends its queued messages.
  class Sender {
   public:
    virtual ~Sender() = default;
    virtual void send() = 0;  // must not throw

   private:
    friend class Pool;
    bool is_due_ = false;  // guarded by the pool's mutex
  };
  // A descriptor for which the pool waits.
  class Source {
   public:
    virtual ~Source() = default;
    virtual int descriptor() const = 0;
    // Something has happened: reads until nothing is there. Of one thread at a time; must not
    // throw.
    virtual void ready() = 0;
    // Whether a thread may stay with it, and how: wait_until_ready() waits for a while until there
    // is something to read, then does what ready() does. False if nothing came, or the source is to
    // be left to the pool again.
    virtual bool lets_stay() const { return false; }
    virtual bool wait_until_ready() { return false; }
    // Whether the pool watches for something to read.
    virtual void watch_input(bool /*watched*/) {}

   protected:
    // The other end has closed the connection, perhaps behind its last bytes: the reading thread
    // must read up to the end, because no other event announces it.
    bool is_closed_there() const { return is_closed_there_; }

   private:
    friend class Pool;
    std::atomic<bool> is_closed_there_{false};
    enum class Stay : std::uint8_t { kNone, kReads, kRuns };  // what the thread that stays does
    std::uint64_t id_ = 0;  // never used twice, as numbers of descriptors are
    std::atomic<int> num_events_{0};
    std::atomic<Stay> stay_{Stay::kNone};
  };

  // Housekeeping is done about ten times a second by one of the threads; it must not throw.
  Pool(int num_threads, int max_threads, std::function<void()> housekeeping);
  ~Pool();
  void start();

  // Waits for changes of `events` (EPOLLIN, EPOLLOUT) from now on; the end of a connection always
  // counts. change() also reports what is there already.
  void add(const std::shared_ptr<Source>& source, std::uint32_t events);
  void change(const Source& source, std::uint32_t events);
  void remove(const Source& source);

  // Soon, by a thread of this pool: in ready(), by the same thread afterwards.
  void run(std::shared_ptr<Task> task);
  void run(std::function<void()> task);
  // For the end of a task: its thread goes on with this one.
  void run_next(std::shared_ptr<Task> task);

  // What is queued in short order is sent together: `sender` sends within about 100 microseconds.
  void send_soon(const std::shared_ptr<Sender>& sender);
  // The same for a task that has just queued something, at its end, while many short tasks wait.
  // False if it should send by itself.
  bool send_with_others(const std::shared_ptr<Sender>& sender);

  // While it lives, the calling thread does not count as running its task.
  class Blocked {
   public:
    Blocked();
    ~Blocked();
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;

   private:
    Pool* const pool_;
  };

  // No task begins after this. Waits for those that run until the deadline; false if some went on,
  // on threads that then end by themselves. The calling thread, if it is one of the pool, is not
  // waited for.
  bool stop(Deadline deadline);
  bool is_own_thread() const;

 private:
  struct Event {
    enum class Kind : std::uint8_t { kNone, kWake, kTime, kSource, kTakenOver } kind{};
    std::uint64_t source = 0;
    bool is_end = false;  // of the source's connection
  };
  struct Runner {
    pid_t thread = 0;
    bool is_asleep = false;  // at the last look: it does not count
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
  bool excuse_sleepers_locked();
  void add_due_locked(const std::shared_ptr<Sender>& sender);
  Senders take_due_locked(bool also_young);
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

  std::mutex mutex_;  // guards what follows
  std::condition_variable thread_ended_, rest_ends_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources_;
  std::uint64_t last_id_;
  std::deque<std::shared_ptr<Task>> tasks_;
  Senders due_;  // to send
  std::chrono::steady_clock::time_point due_since_;
  std::uint64_t num_taken_ = 0, num_taken_before_ = 0;  // tasks, and their number at the last look
  std::chrono::steady_clock::time_point moved_at_;      // the queue, as far as that was seen
  const int usual_running_;                             // tasks at a time
  int max_running_;                                     // now
  std::uint64_t last_source_ = 0;                       // whose event was the last one
  int num_in_row_ = 0;                                  // of its events
  std::shared_ptr<Source> stayed_with_;                 // by a thread; null: by none
  std::uint64_t turns_at_look_ = 0;                     // num_turns_ at the last look
  int num_looking_ = 0;                   // of those that wait, also look at the queue
  int num_resting_ = 0, num_called_ = 0;  // threads; of those that rested and are to wait again
  int num_active_ = 0;           // threads that handle events, but those that stay or are blocked
  std::uint64_t num_turns_ = 0;  // events and tasks that were taken
  int num_quiet_looks_ = 0;      // in which nothing was found
  int num_waiting_ = 0;          // threads, for events
  std::vector<Runner> runners_;  // threads that run tasks
  std::vector<std::jthread> threads_;
  std::vector<std::thread::id> ended_;
};

}  // namespace paceline::rpc
