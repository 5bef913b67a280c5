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

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/number_text.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/process_end.h"

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

// The report when a rank fails: which rank failed first and how, what that usually means, its
// last lines, where its log is. Pure functions.

// What usually causes such an end, or "".
std::string hint_for(const RankEnd& end);

struct FailureContext {
  std::string name;  // "rank 3", or of a rank with a role "trainer1 (rank 3)"
  std::string host;
  std::string last_lines;     // indented, ready to print; may be empty
  std::string log_path;       // empty when there is no log
  std::string cause;          // what is known of it; empty: the usual cause is printed
  std::string stack;          // where it was, indented, ready to print; may be empty
  std::vector<int> finished;  // ranks that had ended with exit code 0 before
};
std::string failure_report(const RankEnd& culprit, const FailureContext& context);

// "paceline: ranks 1, 3 ended because of it (exit code 1)\n"; empty when there are none.
std::string followers_summary(const std::vector<RankEnd>& followers);
// "paceline: rank 1 also failed (exit code 127)\n": of ranks that may have failed by themselves.
std::string fellows_summary(const std::vector<RankEnd>& fellows);
// "paceline: rank 1 did not end within 10 s of SIGTERM and was killed (SIGKILL)\n", with `limit`
// from "within" on; empty when there are none.
std::string killed_summary(const std::vector<int>& ranks, const std::string& limit);

// It ended as the first one did, within moments, and not by a signal with which a launcher ends
// ranks: so it may have had the same reason, and need not have followed from the first.
bool may_be_fellow(const RankEnd& first, const RankEnd& later);

// Why a rank ended, where that can be known: what the kernel counted, what the loader, the C++
// library or Python wrote last, how full /dev/shm was. A pure function of what was collected;
// hint_for() (failure_report.h) says what is usual where nothing is known.

struct FileSystemRoom {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
// Nothing when it cannot be asked.
std::optional<FileSystemRoom> room_of(const char* path);

struct EndEvidence {
  RankEnd end;
  std::string last_lines;                 // as RankOutput::last_lines() gives them
  MemoryCounters before, after;           // at the start of the ranks, at the end of this one
  std::optional<KernelKill> kernel_kill;  // the kernel's own words on this process
  std::optional<FileSystemRoom> shared;   // /dev/shm when it ended
};

// A sentence without an end; empty when nothing is known for certain.
std::string cause_of(const EndEvidence& evidence);

// "out of memory" for a cause that is that; otherwise empty.
std::string short_reason(const std::string& cause);

}  // namespace paceline::launcher
