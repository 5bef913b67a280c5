#pragma once

// Which of two ranks on different hosts failed first. Within a host the order of deaths is known;
// between hosts there are the moments at which the agents saw them, on clocks that were compared
// (clock_comparison.h) and are apart by a known error at most. Pure.
//
// Where the moments are further apart than the clocks' errors, they decide. But a process that a
// signal kills may take a while to be gone, and others may have noticed and exited meanwhile, so a
// signal comes before an exit code unless that was there a second earlier; SIGABRT is a program's
// own decision, as an exit code is. Where nothing else decides, the likelier order does, and
// without moments the report that came first.

#include <chrono>
#include <optional>

namespace paceline::launch {

struct FailureMark {
  int signal = 0;                              // 0: it exited by itself
  std::optional<std::chrono::nanoseconds> at;  // on the clock of whoever compares
  std::chrono::nanoseconds error{};            // of that, at most
};

// Whether `later`, whose report came second, failed before `earlier`.
bool failed_before(const FailureMark& later, const FailureMark& earlier);

}  // namespace paceline::launch
