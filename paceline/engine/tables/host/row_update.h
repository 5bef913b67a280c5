#pragma once

// One row: its initial values, and a step of its optimizer.

#include <cstdint>

#include "paceline/engine/tables/host/table_layout.h"
#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

// The number of float32 elements of a row and its optimizer's state.
std::uint32_t floats_of_row(const Settings& settings);

// A row is `width` elements and then the optimizer's state. Thread safety: pure functions.

// Writes the `width` initial values of a row: a pure function of seed and id.
void write_initial_values(const Settings& settings, Id id, float* row);
// As above, with the state of an optimizer that has taken no step.
void write_new_row(const Settings& settings, Id id, float* row);
// Takes one step of the optimizer on a row.
void step_row(const Settings& settings, double lr, float* row, const float* gradient);

// A well mixed hash of 64 bits, a bijection.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The slot of an id. It is the same on every host, because servers own slots.
constexpr std::uint32_t slot_of(Id id) {
  return static_cast<std::uint32_t>(mix(static_cast<std::uint64_t>(id)) >> 54);
}

}  // namespace paceline::tables
