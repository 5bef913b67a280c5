#pragma once

// The time of things that are only recorded. Deadlines use Deadline.
//
// Where the kernel itself keeps time by the processor's time-stamp counter, a reading is one of
// that counter, scaled as the last two looks at the kernel's clock say, of which the last is at
// most a millisecond old: half of the cost of CLOCK_MONOTONIC. Elsewhere it is CLOCK_MONOTONIC.
//
// Thread safety: any thread may call. It never steps back within a thread; between threads it
// agrees to about a microsecond.

#include <cstdint>

namespace paceline {

// Nanoseconds, as CLOCK_MONOTONIC counts them.
std::uint64_t record_time() noexcept;

}  // namespace paceline
