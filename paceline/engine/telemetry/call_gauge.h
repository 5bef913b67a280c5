#pragma once

// Shows the remote calls of this process (engine/rpc/workers.h) to other programs: `paceline top`
// reads the number and the duration of the calls of each method, `paceline explain` reads which
// calls have been waiting, and for which worker. The gauge is a mapped file of 194 KiB that never
// grows, PACELINE_FLIGHT_DIR/rank-000.calls; the kernel keeps the file if the process is killed.
// telemetry/FORMAT.md describes every byte, call_gauge_file.h reads the file.
//
// Cost of a call: two readings of record_time() and two additions at the caller, three of each at
// the callee; next to nothing without PACELINE_FLIGHT_DIR. The tables of open calls are written
// about ten times a second, and list only calls that have been open for at least 0.5 s (kLong).
//
// Thread safety: every method may be called from any thread. A forked child has no gauge.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

namespace calls {
struct File;
}

enum class CallSide : std::uint8_t { kCaller = 0, kCallee = 1 };

enum class OpenState : std::uint8_t {
  kNotSent = 1,  // at the caller: there is no connection
  kSent = 2,
  kQueued = 3,  // at the callee, as is kRunning
  kRunning = 4,
};

// A call that has begun but not ended.
struct OpenCall {
  std::string worker;  // the worker of this process
  std::string other;   // the worker that it calls, or that calls it
  std::string method;
  std::uint64_t number = 0;  // counts the calls of this caller to this callee
  std::uint64_t caller = 0;  // worker_hash() of the caller
  std::uint64_t begun = 0;   // record_time(); at the callee, when the call entered `state`
  OpenState state = OpenState::kSent;
};
// The hash of a text: a worker's name, or its incarnation (a random text that identifies one
// process of that name).
std::uint64_t worker_hash(std::string_view incarnation);

// The counters of one method, at the caller or at the callee. An empty CallCounter counts nothing.
struct CallCounter {
  void* method = nullptr;  // calls::Method
};

class CallGauge {
 public:
  // A call is shown as open once it has been open for this time.
  static constexpr std::uint64_t kLong = 500'000'000;  // ns
  static constexpr std::size_t kMaxOpen = 64;

  // The gauge of this process, opened by its first worker. Null without PACELINE_FLIGHT_DIR, in a
  // forked child, and when the file cannot be made or another live process writes to it.
  static std::shared_ptr<CallGauge> of_process(std::string_view worker);

  CallGauge(const std::string& path, int rank, std::string_view worker);
  // Removes the file, unless PACELINE_FLIGHT_KEEP=1 leaves that to the program that started the
  // job.
  ~CallGauge();
  CallGauge(const CallGauge&) = delete;
  CallGauge& operator=(const CallGauge&) = delete;
  // False if the file could not be made, or if another live process writes to it.
  bool is_open() const { return file_ != nullptr; }

  // The counter of method `number`, which must not be 0; empty if `side` has 64 other methods.
  CallCounter counter(CallSide side, std::uint64_t number, std::string_view name) noexcept;
  static void begin(CallCounter counter) noexcept;
  // Counts a call whose handler starts to run.
  static void start(CallCounter counter) noexcept;
  static void end(CallCounter counter, std::uint64_t ns, bool failed) noexcept;

  // Replaces the open calls of one worker. The kMaxOpen oldest calls of the process are shown.
  void publish(std::string_view worker, std::span<const OpenCall> callers,
               std::span<const OpenCall> callees, std::uint64_t references, std::uint64_t objects);
  // Removes the open calls of a worker that has left.
  void forget(std::string_view worker) { publish(worker, {}, {}, 0, 0); }

 private:
  struct Shown {
    std::string worker;
    std::array<std::vector<OpenCall>, 2> open;
    std::uint64_t references = 0, objects = 0;
  };
  void write_table(CallSide side);

  const std::string path_;
  calls::File* file_ = nullptr;
  std::mutex mutex_;  // guards shown_, and the tables against a second writer
  std::vector<Shown> shown_;
};

}  // namespace paceline
