#pragma once

// Which of two ranks failed first. Some say it themselves: that they failed because another rank
// was gone, or had ended the group. Where that one failed as well, it was first, whoever's end was
// seen before: a program behind a wrapper that passes its exit code on ends later than it died, and
// one that ends a group may have work to finish.
//
// Otherwise, on different hosts: within a host the order of deaths is known;
// between hosts there are the moments at which the agents saw them, on clocks that were compared
// (launcher/messages/clock_comparison.h) and are apart by a known error at most. Pure.
//
// Where the moments are further apart than the clocks' errors, they decide. But a process that a
// signal kills may take a while to be gone, and others may have noticed and exited meanwhile, so a
// signal comes before an exit code unless that was there a second earlier; SIGABRT is a program's
// own decision, as an exit code is. Where nothing else decides, the likelier order does, and
// without moments the report that came first.

#include <optional>
#include <string_view>

#include "paceline/launcher/messages/failure.h"

namespace paceline::launcher {

// Whether `later`, whose report came second, failed before `earlier`. Both are of ranks, with their
// moments on one clock.
bool failed_before(const Failure& later, const Failure& earlier);

// The rank whose loss or abort made another rank fail, found in what that rank wrote last or
// recorded of its failure, in the words of the engine's errors; nothing when these accuse no rank.
struct AccusedRank {
  int rank = -1;
  bool has_aborted = false;  // it ended the group, and ends itself once it comes to that
  bool operator==(const AccusedRank&) const = default;
};
std::optional<AccusedRank> accused_rank(std::string_view words);

}  // namespace paceline::launcher
