#pragma once

// The layout of a flight file, shared by its writer (flight_recorder.h) and its reader (below): a
// header, a table of groups, a ring of operations. telemetry/FORMAT.md has every
// offset. All integers are little-endian.
//
// A record that is being written has an odd stamp, and a complete one carries a check word over all
// its fields. So a reader recognises a record that a process left incomplete when it was killed, or
// that was copied half-written.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/flight_recorder.h"

namespace paceline::flight {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");

inline constexpr std::array<char, 8> kMagic = {'P', 'L', 'F', 'L', 'I', 'G', 'H', 'T'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kNumOperations = 1024;
inline constexpr std::size_t kNumGroups = 64;
inline constexpr std::size_t kNameBytes = 96;
inline constexpr std::size_t kFailureBytes = 1024;

// The fields before `end` are written once, before the file gets its name; `end` and the fields
// after it change later.
struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t num_operations;
  std::uint32_t num_groups;
  std::int32_t rank;
  std::int32_t world_size;
  std::uint32_t generation;
  std::int32_t pid;
  std::uint32_t reserved;
  std::uint64_t process_start;  // clock ticks after boot, as in /proc/PID/stat
  std::uint64_t opened;         // ns, monotonic
  std::int64_t opened_wall;     // ns since 1970
  std::array<char, 48> boot;
  std::array<char, 32> pid_namespace;
  std::array<char, 64> host;
  std::array<char, 40> job;
  // How the rank stopped recording (FlightEnd).
  alignas(64) std::uint32_t end;
  std::uint32_t failure_length;    // set last; 0: no failure
  std::uint64_t dropped;           // records lost because their slot was being written or reused
  alignas(64) std::uint64_t next;  // operations begun so far: the id of the newest one
  alignas(64) std::array<char, kFailureBytes> failure;
};

// Groups are numbered from 0 in the order in which they were made, and stored at number %
// kNumGroups.
struct Group {
  std::uint64_t stamp;  // number << 1, odd while it is written; 1: empty
  std::uint64_t hash;   // of the name
  std::int32_t rank;
  std::int32_t world_size;
  std::uint32_t generation;
  std::uint32_t name_length;
  std::array<char, kNameBytes> name;
};
static_assert(sizeof(Group) == 128);

// Operations have ids from 1 on, and are stored at id % kNumOperations.
struct Operation {
  std::uint64_t stamp;        // id << 8 | version, which counts writes and is odd during a write
  std::uint64_t entered;      // ns, monotonic, when it was called
  std::int64_t entered_wall;  // ns since 1970, to the precision of the kernel's tick
  std::uint64_t started;      // 0: still waits in the group's queue
  std::uint64_t ended;        // 0: under way
  std::uint64_t count;
  std::uint64_t group_hash;
  std::uint32_t group;     // the group's number
  std::uint32_t sequence;  // 0: not yet known, or a message between two ranks
  std::int32_t peer;       // root, or the other rank of a message
  std::uint32_t tag;
  std::uint32_t thread;  // the kernel's thread id
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduce_op;
  std::uint8_t state;  // FlightState
  std::uint8_t error;  // 0, or 1 + ErrorCode
  std::uint8_t asynchronous;
  std::uint16_t reserved;
  std::uint32_t check;  // check_of() over all fields before it
};
static_assert(sizeof(Operation) == 88);
inline constexpr std::size_t kNumWords = sizeof(Operation) / sizeof(std::uint64_t);

struct File {
  alignas(2048) Header header;
  alignas(2048) std::array<Group, kNumGroups> groups;
  alignas(2048) std::array<Operation, kNumOperations> operations;
};
static_assert(sizeof(File) == std::size_t{98} * 1024);
static_assert(offsetof(File, groups) == 2048 && offsetof(File, operations) == 2048 + 8192);

// The check word of a record. The check word is the upper half of the last 64-bit word, and counts
// as 0 itself. The products do not depend on each other, so that a record costs a few nanoseconds.
constexpr std::uint32_t check_of(const std::array<std::uint64_t, kNumWords>& words) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint64_t word = i + 1 < words.size() ? words[i] : words[i] & 0xffffffff;
    sum += (word + kOdd * i) * (kOdd * (2 * i + 1));
  }
  return static_cast<std::uint32_t>(sum ^ sum >> 32);
}

}  // namespace paceline::flight

// The reader of flight files, which show each rank's last operations. The reader treats a file as
// untrusted: it checks every length and number, and makes names printable.
//
// Thread safety: pure functions of the files that they read.

namespace paceline {

struct FlightGroup {
  std::uint32_t number = 0;  // in the order in which this rank made its groups
  std::uint64_t hash = 0;    // of the name
  std::string name;
  int rank = 0;  // the number of this rank in the group
  int world_size = 1;
  std::uint32_t generation = 0;
};

struct FlightOperation {
  std::uint64_t id = 0;
  FlightCall call;
  std::uint32_t sequence = 0;  // 0: not yet known, or a message between two ranks
  FlightState state = FlightState::kStarted;
  std::optional<ErrorCode> error;
  std::uint32_t thread = 0;
  // Nanoseconds on the monotonic clock (0: not yet); entered_wall: nanoseconds since 1970.
  std::uint64_t entered = 0, started = 0, ended = 0;
  std::int64_t entered_wall = 0;
};

enum class FlightProcess : std::uint8_t {
  kUnknown,  // on another machine, before a reboot, or in another PID namespace
  kRunning,
  kStopped,  // by SIGSTOP or a debugger
  kGone,
};

// The contents of one rank's file.
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
  std::string failure;  // the text of the first error
  std::uint64_t num_begun = 0;
  std::uint64_t num_dropped = 0;
  std::size_t num_torn = 0;                 // records that were incomplete when the file was read
  std::vector<FlightGroup> groups;          // by number
  std::vector<FlightOperation> operations;  // by id

  // These fields are not in the file: the launcher sets `exit_code`, read_flight() the other two.
  FlightProcess process = FlightProcess::kUnknown;
  std::optional<int> exit_code;  // nullopt: unknown, or the process was killed
  std::uint64_t now = 0;         // the monotonic clock of the rank's machine; 0: unknown
};

// Parses a flight file. Throws Error(kUnsupported) for another version, and Error(kCorrupt) for
// anything else that no recorder writes. `name` names the file in messages.
Flight parse_flight(std::span<const std::byte> bytes, const std::string& name);

// Reads a file, parses it as parse_flight() does, and checks whether its process lives. Also throws
// Error(kSystem).
Flight read_flight(const std::string& path);

// The state of another process, as far as this process can see it.
struct ProcessSight {
  FlightProcess process = FlightProcess::kUnknown;
  std::uint64_t now = 0;  // the monotonic clock; 0: another machine, or unknown
};
ProcessSight look_at_process(const std::string& boot, const std::string& pid_namespace, int pid,
                             std::uint64_t start);
// Looks at the process that a header names (name_this_process()).
template <class Header>
ProcessSight look_at_process(const Header& header) {
  return look_at_process(printable(header.boot), printable(header.pid_namespace), header.pid,
                         header.process_start);
}

// The number of operations that the rank has begun so far, read from the header only; 0 when there
// is no such file.
std::uint64_t num_begun_in(const std::string& path) noexcept;

struct FlightDirectory {
  std::vector<Flight> flights;        // by rank
  std::vector<std::string> problems;  // files that were left out, and why
};
// Reads all rank-RRR.flight files in a directory that belong to its newest job and generation.
// Throws Error(kSystem) when the directory cannot be read, and Error(kInvalid) when it has no such
// file.
FlightDirectory read_flights(const std::string& directory);

}  // namespace paceline
