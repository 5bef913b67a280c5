#pragma once

// The memory through which the ranks of a communicator exchange data: a file in /dev/shm that all
// of them map, whether they are threads or processes. On each rank, one task of the communicator
// uses it at a time.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace paceline::standin {

inline constexpr int kMaxRanks = 16;
inline constexpr std::size_t kStagingBytes = 256 << 10;
inline constexpr std::size_t kMailBytes = 32 << 10;

// The next bytes of a message from one rank to another.
struct Mailbox {
  std::atomic<std::uint32_t> is_full;
  std::uint32_t bytes;
  std::array<std::byte, kMailBytes> data;
};

struct Segment {
  std::atomic<int> attached;
  std::array<std::atomic<std::uint64_t>, kMaxRanks>
      arrived;  // [rank]: the number of barriers that it has reached
  std::array<int, kMaxRanks> versions;
  std::array<std::array<char, 32>, kMaxRanks> bus_ids;
  std::array<std::array<std::byte, kStagingBytes>, kMaxRanks> staging;
  std::array<std::array<Mailbox, kMaxRanks>, kMaxRanks> mail;  // [from][to]
};

// Maps the file; makes it if `creates`. Null, with the reason in `why`, if /dev/shm has no room or
// a system call fails.
Segment* map_segment(const std::string& path, bool creates, std::string* why);
void unmap_segment(Segment* segment);

// Waits until `done`; false if `is_aborted` was set first.
bool wait_until(const std::atomic<bool>& is_aborted, const std::function<bool()>& done);

// Waits until all ranks have arrived; false if aborted.
bool barrier(Segment& segment, int rank, int size, const std::atomic<bool>& is_aborted);

}  // namespace paceline::standin
