#pragma once

// The threads of a worker. Any of them waits for sockets (epoll), and the thread that receives a
// request also runs its handler, so that no hand-over costs time. Two rules keep a worker
// responsive, whatever its handlers do:
//
//  - One thread always waits for sockets: the last one starts another before it runs a task.
//  - At most so many threads run tasks; the others leave tasks in the queue. This number grows (up
//    to a limit) when the queue has not moved for a millisecond and all tasks that run are asleep,
//    or for much longer; it falls back once the queue is empty. A task that waits for a call of its
//    own (Blocked) does not count.
//
// So replies are received and leases renewed also while all handlers are blocked.
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

#include "paceline/core/deadline.h"
#include "paceline/core/fd.h"

namespace paceline::rpc {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    virtual void run() = 0;  // must not throw
  };
  // A descriptor for which the pool waits.
  class Source {
   public:
    virtual ~Source() = default;
    virtual int descriptor() const = 0;
    // Something has happened: reads until nothing is there. Of one thread at a time; must not
    // throw.
    virtual void ready() = 0;

   private:
    friend class Pool;
    std::uint64_t id_ = 0;  // never used twice, as numbers of descriptors are
    std::atomic<int> num_events_{0};
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
    enum class Kind : std::uint8_t { kNone, kWake, kTime, kSource } kind{};
    std::uint64_t source = 0;
  };
  void serve();
  void start_thread_locked();
  bool run_next_task();
  Event wait_for_event();
  void raise_limit_if_stuck_locked();
  bool all_runners_sleep_locked() const;
  void begin_running_locked();
  void end_running_locked();
  void attend(const std::shared_ptr<Source>& source);

  const int max_threads_;
  const std::function<void()> housekeeping_;
  const Fd epoll_, wake_, timer_;
  std::atomic<bool> stops_{false}, keeps_house_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable thread_ended_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Source>> sources_;
  std::uint64_t last_id_;
  std::deque<std::shared_ptr<Task>> tasks_;
  std::uint64_t num_taken_ = 0, num_taken_before_ = 0;  // tasks, and when somebody last looked
  std::chrono::steady_clock::time_point moved_at_;      // the queue, as far as that was seen
  const int usual_running_;                             // tasks at a time
  int max_running_;                                     // now
  int num_waiting_ = 0;                                 // threads, for events
  std::vector<pid_t> runners_;                          // threads that run tasks
  std::vector<std::jthread> threads_;
  std::vector<std::thread::id> ended_;
};

}  // namespace paceline::rpc
