#pragma once

// The streams and events of simulated CUDA devices, without LibTorch. A stream is a thread that
// carries out tasks in order. An event marks a position in a stream. Before some tasks a stream
// sleeps for a random time, so that a missing wait in a program soon shows.
//
// Streams are never destroyed, because tensors of static lifetime may still use them at the end of
// the program.
//
// Thread safety: every function may be called from any thread; an Event, as in CUDA, is recorded by
// one thread at a time.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>

namespace paceline::simulated {

inline constexpr int kMaxDevices = 16;
// The number of devices: PACELINE_SIMULATED_CUDA_DEVICES, or 4.
int num_devices();

struct Delays {
  double share = 0.25;  // share of the tasks before which a stream sleeps
  std::chrono::microseconds most{1000};
};
// Sets the delays of all tasks that have not begun yet. The times are random numbers from
// harness::random_seed(), which prints its seed.
void set_delays(const Delays& delays);

class Stream {
 public:
  // The stream `id` of a device; 0 is the device's default stream. It is made on first use.
  static Stream& of(int device, std::int64_t id);
  // Calls `visit` for every stream of the device that has been used.
  static void for_each(int device, const std::function<void(Stream&)>& visit);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The delays of this stream, instead of those of set_delays().
  void set_delays(const Delays& delays);

  int device() const { return device_; }
  std::int64_t id() const { return id_; }
  void push(std::function<void()> task) { push(std::move(task), true); }
  // For tasks that record an event or wait for one; the stream does not sleep before them.
  void push_mark(std::function<void()> task) { push(std::move(task), false); }
  // Waits until the tasks that have been pushed so far have ended.
  void drain();
  bool is_idle();

 private:
  struct Task {
    std::function<void()> body;
    bool may_be_late = false;
  };

  Stream(int device, std::int64_t id);
  void push(std::function<void()> task, bool may_be_late);
  void carry_out_tasks();
  void be_late(std::mt19937& random);

  const int device_;
  const std::int64_t id_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<Delays> delays_;
  std::deque<Task> tasks_;
  std::uint64_t num_pushed_ = 0;
  std::uint64_t num_done_ = 0;
};

// Like cudaEvent_t: record() moves the event to the stream's current end, and the other functions
// refer to the last record(). An event that was never recorded counts as reached.
class Event {
 public:
  void record(Stream& stream);
  // Makes the stream wait for the event; the calling thread does not wait.
  void block(Stream& stream) const;
  bool is_reached() const;
  void synchronize() const;

 private:
  std::shared_future<void> reached_;
};

// Counters for tests, since the last reset_counts().
struct Counts {
  std::uint64_t synchronisations = 0;  // calls in which the host waited for a device
  std::uint64_t kernels = 0;           // operators and copies
  std::uint64_t events = 0;            // events that were recorded
  std::uint64_t waits = 0;             // streams that were made to wait for an event
};
Counts counts();
void reset_counts();
// How often the program has used a device, for instance to allocate memory or to queue a task.
std::uint64_t num_touches(int device);

void count_synchronisation();
void count_kernel();
void count_touch(int device);

}  // namespace paceline::simulated
