#pragma once

// Explains a failure: which rank was first, why it ended, and the report of it. Pure functions, but
// for room_of().

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

// Whether `later`, whose report came second, failed before `earlier`. Both are failures of ranks,
// with their moments on one clock; ranks of different hosts, because within a host the agent knows
// the order of deaths.
//
//   1. Where the moments are further apart than the errors of the clock comparison
//      (launcher/messages/clock_comparison.h), they decide.
//   2. But a process that a signal kills may take a while to end, and others may notice and exit
//      meanwhile. So a signal comes before an exit code, unless that was there a second earlier.
//      SIGABRT counts as an exit code: both are a program's own decision.
//   3. Otherwise the likelier order decides, and without moments the report that came first.
bool failed_before(const Failure& later, const Failure& earlier);

// A rank whose loss or abort made another rank fail, as the errors of the engine say it in that
// rank's last lines or in its record. If the accused rank failed as well, it was first, although
// its end may be seen later: a wrapper passes an exit code on with a delay, and a rank that ended
// its group may have work to finish.
struct AccusedRank {
  int rank = -1;
  bool has_aborted = false;  // it ended the group, and will end itself later
  bool operator==(const AccusedRank&) const = default;
};
// Nothing when the words accuse no rank.
std::optional<AccusedRank> accused_rank(std::string_view words);

// The usual cause of such an end, or "".
std::string hint_for(const RankEnd& end);

struct FailureContext {
  std::string name;  // "rank 3", or of a rank with a role "trainer1 (rank 3)"
  std::string host;
  std::string last_lines;     // indented, ready to print; may be empty
  std::string log_path;       // empty when there is no log
  std::string cause;          // as far as it is known; empty: the usual cause is printed
  std::string stack;          // where the rank was, indented, ready to print; may be empty
  std::vector<int> finished;  // ranks that had ended with exit code 0 before
};
// The report: which rank failed first and how, the cause, its last lines, and where its log is.
std::string failure_report(const RankEnd& culprit, const FailureContext& context);

// "paceline: ranks 1, 3 ended because of it (exit code 1)\n"; empty when there are none.
std::string followers_summary(const std::vector<RankEnd>& followers);
// "paceline: rank 1 also failed (exit code 127)\n", for ranks that may have failed by themselves.
std::string fellows_summary(const std::vector<RankEnd>& fellows);
// "paceline: rank 1 did not end within 10 s of SIGTERM and was killed (SIGKILL)\n", where `limit`
// is "within 10 s of SIGTERM"; empty when there are none.
std::string killed_summary(const std::vector<int>& ranks, const std::string& limit);

// Whether a rank ended as the first one did, within a second, and not by a signal with which a
// launcher ends ranks. So it may have had the same reason, and need not have followed from the
// first.
bool may_be_fellow(const RankEnd& first, const RankEnd& later);

struct FileSystemRoom {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
// Nothing when the file system cannot be asked.
std::optional<FileSystemRoom> room_of(const char* path);

// All that was collected about an end: the kernel's counters, the last lines of the loader, the C++
// library or Python, and how full /dev/shm was.
struct EndEvidence {
  RankEnd end;
  std::string last_lines;                 // as RankOutput::last_lines() gives them
  MemoryCounters before, after;           // at the start of the ranks, at the end of this one
  std::optional<KernelKill> kernel_kill;  // the kernel's own words on this process
  std::optional<FileSystemRoom> shared;   // /dev/shm when it ended
};

// Why the rank ended, as a sentence without a full stop; empty when nothing is known for certain.
std::string cause_of(const EndEvidence& evidence);

// "out of memory" for such a cause; otherwise empty.
std::string short_reason(const std::string& cause);

}  // namespace paceline::launcher
