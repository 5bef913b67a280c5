#pragma once

// The bytes of a flight file, shared by its writer (flight_recorder) and its reader (flight_file):
// a header, a table of groups, a ring of operations. docs/formats/flight_recorder.md has every
// offset. All integers are little-endian.
//
// A record that is being written has an odd stamp, and one that is whole carries a check word over
// all its fields: what a process left that was killed while writing, or what a copy caught
// half-written, is told from what counts.

#include <array>
#include <cstddef>
#include <cstdint>

namespace paceline::flight {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");

inline constexpr std::array<char, 8> kMagic = {'P', 'L', 'F', 'L', 'I', 'G', 'H', 'T'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kNumOperations = 1024;
inline constexpr std::size_t kNumGroups = 64;
inline constexpr std::size_t kNameBytes = 96;
inline constexpr std::size_t kFailureBytes = 1024;

// Written once, before the file gets its name; `end`, `next` and what follows change later.
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
  // How the rank left (FlightEnd).
  alignas(64) std::uint32_t end;
  std::uint32_t failure_length;    // set last; 0: no failure
  std::uint64_t dropped;           // operations that found their place being written
  alignas(64) std::uint64_t next;  // operations begun so far: the number of the last one
  alignas(64) std::array<char, kFailureBytes> failure;
};

// Groups have numbers from 0 in the order of their making and lie at number % kNumGroups.
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

// Operations have ids from 1 and lie at id % kNumOperations.
struct Operation {
  std::uint64_t stamp;        // id << 8 | version; versions count writes, odd while it is written
  std::uint64_t entered;      // ns, monotonic: the call
  std::int64_t entered_wall;  // ns since 1970, as coarse as the kernel's tick
  std::uint64_t started;      // 0: still behind others in the group's queue
  std::uint64_t ended;        // 0: under way
  std::uint64_t count;
  std::uint64_t group_hash;
  std::uint32_t group;     // number
  std::uint32_t sequence;  // 0: not known yet, or a message between two ranks
  std::int32_t peer;       // root, or the other side of a message
  std::uint32_t tag;
  std::uint32_t thread;  // its kernel id
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduce_op;
  std::uint8_t state;  // FlightState
  std::uint8_t error;  // 0, or 1 + ErrorCode
  std::uint8_t asynchronous;
  std::uint16_t reserved;
  std::uint32_t check;  // check_of() all that stands before it
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

// The check word of a record whose words are given, its own half of the last one taken as 0. The
// products are independent of each other, so that a record costs a few nanoseconds.
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
