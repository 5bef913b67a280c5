#pragma once

// The layout of a call gauge, shared by its writer (call_gauge.h) and its reader (below).
// telemetry/FORMAT.md has every offset. All integers are little-endian.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/call_gauge.h"
#include "paceline/engine/telemetry/flight_file.h"

namespace paceline::calls {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");

inline constexpr std::array<char, 8> kMagic = {'P', 'L', 'C', 'A', 'L', 'L', 'S', '1'};
inline constexpr std::size_t kNumMethods = 64;
inline constexpr std::size_t kNumOpen = 64;
inline constexpr std::size_t kNumBuckets = 128;
inline constexpr std::size_t kMethodBytes = 88;
inline constexpr std::size_t kWorkerBytes = 136;

struct Header {
  std::array<char, 8> magic;  // written last
  std::int32_t rank;
  std::int32_t pid;
  std::uint64_t process_start;  // clock ticks after boot, as in /proc/PID/stat
  std::uint64_t references;     // references of this process to objects of any process
  std::uint64_t objects;        // objects of this process to which other processes hold references
  std::uint64_t looked;         // ns, monotonic, when a worker last published its open calls
  std::array<char, 48> boot;
  std::array<char, 32> pid_namespace;
  std::array<char, 64> host;
  std::array<char, kWorkerBytes> worker;
};

// A method is stored in the first free slot from number % kNumMethods on.
struct Method {
  std::uint64_t number;   // method_id() of its name; 0: free
  std::uint64_t begun;    // calls sent; at the callee: calls that arrived
  std::uint64_t started;  // at the callee: calls taken out of the queue
  std::uint64_t failed;   // ended calls that failed
  std::array<char, kMethodBytes> name;
  std::array<std::uint64_t, kNumBuckets> ended;  // counts by duration: bucket_of()
};

struct Open {
  std::uint64_t begun;   // ns, monotonic; at the callee: when the call arrived or began to run
  std::uint64_t number;  // counts the calls of this caller to this callee
  std::uint64_t caller;  // a hash of the caller's process
  std::uint64_t state;   // OpenState
  std::array<char, kWorkerBytes> worker;  // the worker of this process
  std::array<char, kWorkerBytes> other;
  std::array<char, kMethodBytes> method;
};

struct Table {
  std::uint64_t stamp;  // odd while the table is being written
  std::uint64_t count;
  std::array<Open, kNumOpen> open;
};

struct File {
  alignas(1024) Header header;
  alignas(1024) std::array<std::array<Method, kNumMethods>, 2> methods;  // indexed by CallSide
  alignas(1024) std::array<Table, 2> tables;                             // indexed by CallSide
};

static_assert(sizeof(File) == std::size_t{194} * 1024);

// The bucket of a duration: bucket 0 below 128 ns, then four buckets for each doubling; the last
// bucket takes everything from about 7 min on.
constexpr std::size_t bucket_of(std::uint64_t ns) {
  constexpr unsigned kFirst = 7;
  if (ns < (std::uint64_t{1} << kFirst)) return 0;
  const auto doubling = static_cast<unsigned>(63 - __builtin_clzll(ns));
  const auto quarter = static_cast<unsigned>(ns >> (doubling - 2)) & 3U;
  const std::size_t bucket = 4 * (doubling - kFirst) + quarter + 1;
  return bucket < kNumBuckets ? bucket : kNumBuckets - 1;
}
// The shortest duration of a bucket, in nanoseconds.
constexpr std::uint64_t bucket_begin(std::size_t bucket) {
  if (bucket == 0) return 0;
  const std::size_t doubling = 7 + (bucket - 1) / 4;
  return (4 + (bucket - 1) % 4) << (doubling - 2);
}

}  // namespace paceline::calls

// The reader of call gauges. It treats a file as untrusted: it checks every length and state, and
// makes names printable.
//
// Thread safety: pure functions of the files that they read.

namespace paceline {

// The figures of one method, at the caller or at the callee.
struct CallFigures {
  CallSide side = CallSide::kCaller;
  std::string method;
  std::uint64_t begun = 0;    // at the callee: calls that arrived
  std::uint64_t started = 0;  // at the callee only
  std::uint64_t failed = 0;
  std::vector<std::uint64_t> ended;  // counts by duration (calls::bucket_of)

  std::uint64_t num_ended() const;
  // The number of calls without a reply; at the callee, of calls whose handler has not finished.
  std::uint64_t under_way() const;
  std::uint64_t queued() const;  // at the callee only
};
// The quantile `share` of the durations in `ended`, in seconds and to the precision of the buckets;
// nullopt without calls.
std::optional<double> call_seconds(const std::vector<std::uint64_t>& ended, double share);

struct CallReading {
  int rank = 0;
  int pid = 0;
  std::string worker;  // the first worker of the process
  std::string host;
  FlightProcess process = FlightProcess::kUnknown;
  std::uint64_t now = 0;     // the monotonic clock of the worker's machine; 0: unknown
  std::uint64_t looked = 0;  // when `open` was last published, on the same clock
  std::uint64_t references = 0, objects = 0;
  std::vector<CallFigures> methods;
  std::array<std::vector<OpenCall>, 2> open;  // indexed by CallSide, oldest first
};

// "rank-003.calls".
std::string call_gauge_name(int rank);
// Returns nullopt when there is no such file, or it is not a call gauge.
std::optional<CallReading> read_call_gauge(const std::string& path);
// Reads all gauges in a directory, ordered by rank, including gauges of processes that have ended.
std::vector<CallReading> read_call_gauges(const std::string& directory);

}  // namespace paceline
