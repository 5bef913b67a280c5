#pragma once

// Flight files, read: what each rank did last. Files are taken for what a stranger may have
// written: every length, number and name is checked, and names are printable.
//
// Thread safety: pure functions of what they read.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/flight_operation.h"

namespace paceline {

struct FlightGroup {
  std::uint32_t number = 0;  // in the order of their making on this rank
  std::uint64_t hash = 0;    // of the name
  std::string name;
  int rank = 0;  // this rank's in the group
  int world_size = 1;
  std::uint32_t generation = 0;
};

struct FlightOperation {
  std::uint64_t id = 0;
  FlightCall call;
  std::uint32_t sequence = 0;  // 0: not known yet, or a message between two ranks
  FlightState state = FlightState::kStarted;
  std::optional<ErrorCode> error;
  std::uint32_t thread = 0;
  // Nanoseconds: monotonic, from the machine's start, 0 for what has not happened; and since 1970.
  std::uint64_t entered = 0, started = 0, ended = 0;
  std::int64_t entered_wall = 0;
};

enum class FlightProcess : std::uint8_t {
  kUnknown,  // of another machine, or of one that has been restarted
  kRunning,
  kStopped,  // SIGSTOP, or a debugger
  kGone,
};

// One rank's file.
struct Flight {
  int rank = 0;
  int world_size = 1;
  std::uint32_t generation = 0;
  int pid = 0;
  std::uint64_t process_start = 0;
  std::uint64_t opened = 0;
  std::int64_t opened_wall = 0;
  std::string boot, pid_namespace, host, job;
  FlightEnd end = FlightEnd::kOpen;
  std::string failure;  // the first error's text
  std::uint64_t num_begun = 0;
  std::uint64_t num_dropped = 0;
  std::size_t num_torn = 0;         // records that were being written when the process ended
  std::vector<FlightGroup> groups;  // by number
  std::vector<FlightOperation> operations;  // by id

  // Not in the file: the reader's.
  FlightProcess process = FlightProcess::kUnknown;
  std::optional<int> exit_code;  // of the process; nothing: not known, or it was killed
  std::uint64_t now = 0;         // the monotonic clock of the rank's machine; 0: not known
};

// Error(kUnsupported) for another version, Error(kCorrupt) for anything else that a recorder does
// not write. `name` stands in the messages.
Flight parse_flight(std::span<const std::byte> bytes, const std::string& name);

// As parse_flight, and looks whether the process lives. Error(kSystem).
Flight read_flight(const std::string& path);

// A process of this boot of this machine, by its pid namespace, its number there and its start.
FlightProcess process_of(const std::string& pid_namespace, int pid, std::uint64_t start);

// How many operations the rank has begun so far, from a file's header alone; 0 when there is no
// such file.
std::uint64_t num_begun_in(const std::string& path) noexcept;

struct FlightDirectory {
  std::vector<Flight> flights;        // by rank
  std::vector<std::string> problems;  // files that were left out, and why
};
// All rank-RRR.flight of a directory, of the job and generation that began last. Error(kSystem)
// when it cannot be read, Error(kInvalid) when it has none.
FlightDirectory read_flights(const std::string& directory);

}  // namespace paceline
