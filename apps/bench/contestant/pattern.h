#pragma once

// The values that ranks write before a collective, and the results that it must have. Every rank
// has its own table of small whole numbers, which is repeated over the rank's buffer from a
// position in the table that changes from call to call. So values can be written by plain copies
// and compared by memcmp, and a result that is old, shifted or another rank's is detected. Sums
// over all ranks are exact in every type, including bool and the 8-bit types (which wrap).
//
// Thread safety: const after construction.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "apps/bench/operation.h"

namespace paceline::bench {

// With more ranks, sums would not be exact in bfloat16.
inline constexpr int kMaxRanks = 256;

class Pattern {
 public:
  // Requires: world_size <= kMaxRanks.
  Pattern(Dtype dtype, int world_size);

  // Writes the contribution of `rank` to the call numbered `call`, with ordinary stores.
  void write(std::span<std::byte> buffer, int rank, std::uint64_t call) const;

  // The first element of this rank's output that differs from the correct result of `collective`,
  // if any. Requires: the ranks wrote their inputs with the same `call`.
  struct Difference {
    std::size_t index;  // in elements of the output
    double found, expected;
  };
  std::optional<Difference> compare(const Collective& collective, int rank,
                                    std::uint64_t call) const;

 private:
  using Table = std::vector<std::byte>;
  struct Run;  // a section of an output that repeats one table

  Table encode(const std::vector<int>& values) const;
  std::vector<Run> expected(const Collective& collective, int rank, std::uint64_t call) const;
  double value_at(const std::byte* element) const;

  const Dtype dtype_;
  const int world_size_;
  const std::size_t element_;   // bytes
  std::vector<Table> of_rank_;  // one table for each rank
  Table of_sum_;
};

}  // namespace paceline::bench
