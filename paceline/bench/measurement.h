#pragma once

// One rank's side of a turn: buffers, what is written before each call, the clock, the check.
//
// A call is timed on its own: the ranks line up, read the clock, call, read the clock. What the
// caller reports for a call is the time of the slowest rank. With fresh buffers every rank writes
// its input before it lines up, as a backward pass does: reducing the same untouched buffer again
// and again flatters everybody. Two calls that are not timed come first.
//
// Thread safety: none.

#include <cstdint>

#include "paceline/bench/contestant.h"
#include "paceline/bench/messages.h"
#include "paceline/bench/pattern.h"
#include "paceline/bench/start_line.h"

namespace paceline::bench {

class Measurement {
 public:
  // Both outlive this object.
  Measurement(Contestant& contestant, StartLine& start_line, int rank, int world_size)
      : contestant_(contestant), start_line_(start_line), rank_(rank), world_size_(world_size) {}

  // Collective. Errors are the contestant's, and Error(kTimeout) when a rank does not line up.
  TurnResult run(const Turn& turn);

 private:
  struct Buffers {
    MemoryKind kind = MemoryKind::kOrdinary;
    std::size_t input_bytes = 0, output_bytes = 0;
    Memory input, output;
  };

  Collective prepare(const Turn& turn);
  void require_buffers(MemoryKind kind, std::size_t input_bytes, std::size_t output_bytes);
  void write(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::string checked_call(const Turn& turn, const Collective& call, const Pattern& pattern);
  std::vector<double> timed_calls(const Turn& turn, const Collective& call, const Pattern& pattern);

  Contestant& contestant_;
  StartLine& start_line_;
  const int rank_, world_size_;
  Buffers buffers_;
  std::uint64_t num_calls_ = 0;  // the same on every rank
};

}  // namespace paceline::bench
