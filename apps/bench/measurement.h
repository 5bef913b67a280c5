#pragma once

// One rank's side of a turn: buffers, what is written before each call, the clock, the check.
//
// A call is timed on its own: the ranks line up, read the clock, call, read the clock. What the
// caller reports for a call is the time of the slowest rank. With fresh buffers every rank writes
// its input before it lines up, as a backward pass does: reducing the same untouched buffer again
// and again flatters everybody. Two calls that are not timed come first.
//
// Thread safety: none.

#include <array>
#include <cstdint>
#include <vector>

#include "apps/bench/contestant.h"
#include "apps/bench/messages.h"
#include "apps/bench/pattern.h"
#include "apps/bench/start_line.h"

namespace paceline::bench {

class Measurement {
 public:
  // Both outlive this object.
  Measurement(Contestant& contestant, StartLine& start_line, int rank, int world_size)
      : contestant_(contestant), start_line_(start_line), rank_(rank), world_size_(world_size) {}

  // Collective. Errors are the contestant's, and Error(kTimeout) when a rank does not line up.
  TurnResult run(const Turn& turn);

 private:
  // Kept from turn to turn, because libraries remember memory that they have seen.
  struct Buffer {
    Memory memory;
    std::size_t capacity = 0;
  };
  struct Buffers {
    Buffer input, output;
  };

  Collective prepare(const Turn& turn);
  std::byte* require(Buffer& buffer, MemoryKind kind, std::size_t bytes);
  void give_back_large_buffers();
  std::string lacks(const Turn& turn) const;
  void carry_out(const Turn& turn, const Collective& call);
  void write(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::string checked_call(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::vector<double> timed_calls(const Turn& turn, const Collective& call, const Pattern& pattern);

  Contestant& contestant_;
  StartLine& start_line_;
  const int rank_, world_size_;
  std::array<Buffers, 2> buffers_;   // by MemoryKind
  std::vector<std::size_t> counts_;  // of the call under way
  std::uint64_t num_calls_ = 0;      // the same on every rank
};

}  // namespace paceline::bench
