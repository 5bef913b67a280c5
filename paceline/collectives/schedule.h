#pragma once

// An algorithm as data: what one rank does in a collective, as a list of steps over element ranges.
// Pure functions build schedules (algorithms/), executors run them over messages or over shared
// memory, and tests run all ranks' schedules without a network.
//
// Words. *Input* and *output* are the caller's buffers; a *slot* is room for one received range
// that only feeds a reduce. A *chunk* is the part of a buffer that one rank reduces. *Round 0*
// moves input, round 1 moves what a reduce made.
//
// Rules that every schedule keeps (tests/collectives/schedule_test.cpp checks them for world sizes
// 1 to 17):
//   - every send has exactly one matching receive, in the same order per pair of ranks, with the
//   same places and count;
//   - a reduce combines the contributions of all ranks in rank order, by the one fixed tree of
//   kernels/reduce.h;
//   - no step reads a range of output before the step that fills it.

#include <cstddef>
#include <vector>

#include "paceline/collectives/collective.h"

namespace paceline {

enum class Space : std::uint8_t { kInput, kOutput, kSlot };

// A range's beginning: an element offset in input or output, or the number of a slot.
struct Place {
  Space space = Space::kInput;
  std::size_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Step {
  enum class Kind : std::uint8_t { kSend, kReceive, kReduce, kCopy };
  Kind kind = Kind::kCopy;
  int peer = -1;  // send, receive
  int round = 0;
  Place from;  // send: here; receive: at the peer; reduce: this rank's own contribution; copy: here
  Place to;    // send: at the peer; receive, reduce, copy: here
  std::size_t count = 0;
};

// A reduce reads slot q as the contribution of rank q, for every q but its own rank, and its own
// from `from`.
struct Schedule {
  std::vector<Step> steps;
  std::size_t slot_count = 0;  // the largest count that a slot must hold; 0: no slots
};

// What a schedule is built for. Blocks of gather-like and scatter-like operations begin every
// `input_stride` or `output_stride` elements, so that one schedule can serve a piece of a larger
// call.
struct ScheduleSpec {
  Op op = Op::kBarrier;
  int rank = 0;
  int world_size = 1;
  int root = 0;
  std::size_t count = 0;  // as in Collective
  std::size_t input_stride = 0;
  std::size_t output_stride = 0;
};

}  // namespace paceline
