#pragma once

// What is known of one operation of one rank: the words that the flight recorder and its readers
// share. Values.

#include <cstdint>
#include <string>

#include "paceline/engine/core/dtype.h"

namespace paceline {

enum class FlightState : std::uint8_t {
  kEntered = 1,  // called; behind other operations in the group's queue
  kStarted = 2,
  kDone = 3,
  kFailed = 4,
};

// How a rank stopped recording.
enum class FlightEnd : std::uint32_t {
  kOpen = 0,       // it has not: it runs, or its process ended without a word
  kInOrder = 1,    // its groups are gone and nothing failed
  kFailed = 2,     // its groups are gone, and something had failed
  kException = 3,  // its groups went down with an exception, and nothing had failed before
};

// What is called. `op` and `reduce_op` are the numbers of paceline/engine/collectives.
struct FlightCall {
  std::uint8_t op = 0;
  std::uint8_t reduce_op = 0;
  Dtype dtype = Dtype::kUint8;
  bool asynchronous = false;
  std::uint32_t group = 0;  // as FlightRecorder::add_group() gave it
  std::int32_t peer = 0;    // root, or the other side of a message
  std::uint32_t tag = 0;
  std::uint64_t count = 0;
  std::uint64_t group_hash = 0;
};

// "rank-003.flight".
std::string flight_file_name(int rank);

}  // namespace paceline
