#pragma once

// The operations of a group, and how they reduce elements.

#include <cstdint>

namespace paceline {

// The numbers are part of the wire format.
enum class Op : std::uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kGather = 4,
  kScatter = 5,
  kReduceScatter = 6,
  kAllToAll = 7,
  kBarrier = 8,
  kSend = 9,
  kReceive = 10,
  kAllocate = 11,  // allocates symmetric memory; count is in bytes
  kAllGatherV = 12,
  kReduceScatterV = 13,
  kAllToAllV = 14,
  kNewGroup = 15,  // the ranks compare the members that they name
  kSplit = 16,
  kTakeTurns = 17,  // orders groups in a library that serves one group of a process at a time
  kVisit = 18,      // a body runs on every rank's buffers
};

// How the elements of all ranks are reduced to one. The numbers are part of the wire format.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMean = 1,  // the sum, divided by the number of ranks or Call::divisor; floating point only
  kProduct = 2,
  kMin = 3,     // NaN if any rank's element is NaN
  kMax = 4,     // NaN if any rank's element is NaN
  kBitAnd = 5,  // for integers and bool only, as are the two below
  kBitOr = 6,
  kBitXor = 7,
};

}  // namespace paceline
