#pragma once

// The calls of this process (engine/rpc/workers.h), for programs that look from outside: `paceline
// top` reads how many there are of each method and how long they take, `paceline explain` which of
// them have been waiting, and for what. A mapped file, PACELINE_FLIGHT_DIR/rank-000.calls of 194
// KiB that never grows; the kernel keeps it whatever ends the process. docs/formats/call_gauge.md
// has every byte, call_gauge_file.h reads it.
//
// Cost of a call: at its caller two readings of record_time() and two additions, at its callee one
// addition more. Nothing without PACELINE_FLIGHT_DIR. The tables of open calls are written about
// ten times a second, of calls that have been open for long.
//
// Thread safety: all methods. A child of fork() has none.

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
  kNotSent = 1,  // of a caller: there is no connection
  kSent = 2,
  kQueued = 3,  // of a callee
  kRunning = 4,
};

// A call that has begun and not ended.
struct OpenCall {
  std::string worker;  // of this process
  std::string other;   // the worker that it calls, or that calls it
  std::string method;
  std::uint64_t number = 0;  // of the call, among those of its caller at its callee
  std::uint64_t caller = 0;  // worker_hash()
  std::uint64_t begun = 0;   // record_time(); of a callee: since when it is in that state
  OpenState state = OpenState::kSent;
};
// Tells one worker from others, by its name, or one process of that name, by its incarnation.
std::uint64_t worker_hash(std::string_view incarnation);

// The counters of one method, on the calling or the serving side. An empty one counts nothing.
struct CallCounter {
  void* method = nullptr;  // calls::Method
};

class CallGauge {
 public:
  // A call is shown as open once it has been open for this time.
  static constexpr std::uint64_t kLong = 500'000'000;  // ns
  static constexpr std::size_t kMostOpen = 64;

  // The gauge of this process, opened by its first worker; null without PACELINE_FLIGHT_DIR, when
  // the file cannot be made, or in a child of fork().
  static std::shared_ptr<CallGauge> of_process(std::string_view worker);

  CallGauge(const std::string& path, int rank, std::string_view worker);
  // Removes the file, unless PACELINE_FLIGHT_KEEP=1 leaves that to the program that started the
  // job.
  ~CallGauge();
  CallGauge(const CallGauge&) = delete;
  CallGauge& operator=(const CallGauge&) = delete;
  // The file was made.
  bool is_open() const { return file_ != nullptr; }

  // `number` is not 0. Only the first 64 methods are counted.
  CallCounter counter(CallSide side, std::uint64_t number, std::string_view name) noexcept;
  static void begin(CallCounter counter) noexcept;
  // A handler runs.
  static void start(CallCounter counter) noexcept;
  static void end(CallCounter counter, std::uint64_t ns, bool failed) noexcept;

  // Replaces what one worker of this process has open: the oldest of them are shown.
  void publish(std::string_view worker, std::span<const OpenCall> callers,
               std::span<const OpenCall> callees, std::uint64_t references, std::uint64_t objects);
  // A worker has left.
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
