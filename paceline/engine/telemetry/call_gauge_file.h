#pragma once

// Call gauges, read. They are taken for what a stranger may have written: every length and state is
// checked, and names are printable.
//
// Thread safety: pure functions of what they read.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/call_gauge.h"
#include "paceline/engine/telemetry/flight_file.h"

namespace paceline {

// One method at one end of its calls.
struct CallFigures {
  CallSide side = CallSide::kCaller;
  std::string method;
  std::uint64_t begun = 0;    // of a callee: arrived
  std::uint64_t started = 0;  // of a callee
  std::uint64_t failed = 0;
  std::vector<std::uint64_t> ended;  // by the time that they took (call_gauge_layout.h)

  std::uint64_t num_ended() const;
  // Calls that wait for a reply, or of a callee for a handler and in one.
  std::uint64_t under_way() const;
  std::uint64_t queued() const;  // of a callee
};
// The time, in seconds, that a share of the calls in `ended` took at most, as well as the buckets
// tell; nothing without calls.
std::optional<double> call_seconds(const std::vector<std::uint64_t>& ended, double share);

struct CallReading {
  int rank = 0;
  int pid = 0;
  std::string worker;  // the first of the process
  std::string host;
  FlightProcess process = FlightProcess::kUnknown;
  std::uint64_t now = 0;     // the monotonic clock of the worker's machine; 0: not known
  std::uint64_t looked = 0;  // when `open` was written, on that clock
  std::uint64_t references = 0, objects = 0;
  std::vector<CallFigures> methods;
  std::array<std::vector<OpenCall>, 2> open;  // by CallSide, oldest first
};

// "rank-003.calls".
std::string call_gauge_name(int rank);
// Nothing when there is no such file, or it is something else.
std::optional<CallReading> read_call_gauge(const std::string& path);
// All of a directory, by rank; those of processes that are known to be gone too.
std::vector<CallReading> read_call_gauges(const std::string& directory);

}  // namespace paceline
