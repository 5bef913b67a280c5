#pragma once

// What can be measured, and the figures that follow from a time. The words and formulas are those
// of nccl-tests (doc/PERFORMANCE.md): bytes are those of the largest buffer that one rank holds;
// algorithm bandwidth = bytes / time; bus bandwidth = algorithm bandwidth x a factor that depends
// on the operation and the number of ranks, and can be compared with the hardware's for any of
// them.
//
// Thread safety: pure functions and values.

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "paceline/collectives/collective.h"

namespace paceline::bench {

enum class Placement { kInPlace, kOutOfPlace };
// Where the buffers lie: in memory that the ranks share, or not.
enum class MemoryKind { kSymmetric, kOrdinary };

std::string_view name_of(Placement placement);
std::string_view name_of(MemoryKind memory);

// The collectives, in the order in which they are listed and measured.
const std::vector<Op>& measurable_ops();
std::optional<Op> op_named(std::string_view name);
std::optional<Dtype> dtype_named(std::string_view name);

// Whether the operation has this form. broadcast and reduce work on one buffer only; the operations
// on blocks, all_gather apart, on two.
bool has_form(Op op, Placement placement);
// In place where that exists and is usual.
Placement usual_placement(Op op);
// `wanted` where the operation has that form, else its usual one.
Placement placement_for(Op op, std::optional<Placement> wanted);

// Collective::count for buffers of `bytes`, rounded up to whole elements in every block. 0 for a
// barrier.
std::size_t count_for(Op op, Dtype dtype, int world_size, std::size_t bytes);
// The bytes that `count` then stands for.
std::size_t bytes_of(Op op, Dtype dtype, int world_size, std::size_t count);

double bus_factor(Op op, int world_size);
// 10^9 bytes a second; 0 for no bytes.
double algorithm_bandwidth(std::size_t bytes, double seconds);

}  // namespace paceline::bench
