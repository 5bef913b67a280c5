#pragma once

// Explains a failure: finds the rank that failed first and the cause of its end, and writes the
// report. Pure functions, except space_of().

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/option_text.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// Whether `later`, whose report came second, failed before `earlier`. Both are failures of ranks of
// different hosts, with their moments converted to one clock. (Within a host the agent knows the
// order in which ranks ended.)
//
//   1. If the moments are further apart than the errors of the clock comparison
//      (launcher/messages/clock_comparison.h), the moments decide.
//   2. But a process that is killed by a signal may take a while to end, and other ranks may notice
//      and exit meanwhile. So an end by a signal counts as earlier than an exit, unless the exit
//      was more than a second earlier. SIGABRT counts as an exit: the program itself causes both.
//   3. Otherwise the earlier moment decides, even within the errors; without moments, the report
//      that came first.
bool failed_before(const Failure& later, const Failure& earlier);

// A rank that the error of another rank names as the cause: the accused rank was lost or aborted
// the group, and therefore the other rank failed. The error is in the other rank's last lines or
// flight record. If the accused rank failed as well, it failed first, although its end may be
// noticed later: a wrapper passes an exit code on with a delay, and a rank that aborted its group
// may have work to finish.
struct AccusedRank {
  int rank = -1;
  bool has_aborted = false;  // it aborted the group; its process will exit later
  bool operator==(const AccusedRank&) const = default;
};
// Reads the accused rank from the text of an error; nullopt if it accuses no rank.
std::optional<AccusedRank> accused_rank(std::string_view words);

// The usual cause of an end with this signal or exit code, or "".
std::string hint_for(const RankEnd& end);

struct FailureContext {
  std::string name;  // "rank 3", or "trainer1 (rank 3)" if the rank has a role
  std::string host;
  std::string last_lines;     // indented, ready to print; may be empty
  std::string log_path;       // empty when there is no log
  std::string cause;          // the known cause; empty: the usual cause is printed
  std::string stack;          // the rank's stack, indented, ready to print; may be empty
  std::vector<int> finished;  // ranks that had already ended with exit code 0
};
// The report for the user: which rank failed first and how, the cause, the rank's last lines, and
// the path of its log.
std::string failure_report(const RankEnd& culprit, const FailureContext& context);

// "paceline: ranks 1, 3 ended because of it (exit code 1)\n"; empty if `followers` is empty.
std::string followers_summary(const std::vector<RankEnd>& followers);
// "paceline: rank 1 also failed (exit code 127)\n", for ranks that may have failed independently;
// empty if `fellows` is empty.
std::string fellows_summary(const std::vector<RankEnd>& fellows);
// "paceline: rank 1 did not end within 10 s of SIGTERM and was killed (SIGKILL)\n", where `limit`
// is "within 10 s of SIGTERM"; empty if `ranks` is empty.
std::string killed_summary(const std::vector<int>& ranks, const std::string& limit);

// Whether a rank may have failed independently of the first one, for the same reason: it ended
// within a second of the first one, with the same exit code or signal, and the signal is not one
// with which a launcher stops ranks.
bool may_be_fellow(const RankEnd& first, const RankEnd& later);

struct FileSystemSpace {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
// The size and free space of the file system that contains `path`; nullopt if they cannot be read.
std::optional<FileSystemSpace> space_of(const char* path);

// All that was collected about the end of a rank: the kernel's counters, the last lines of its
// output, and how full /dev/shm was.
struct EndEvidence {
  RankEnd end;
  std::string last_lines;                 // the result of RankOutput::last_lines()
  MemoryCounters before, after;           // at the start of the ranks, and at the end of this rank
  std::optional<KernelKill> kernel_kill;  // the kernel's log record about this process
  std::optional<FileSystemSpace> shared;  // /dev/shm when the rank ended
};

// Why the rank ended, as a sentence without a full stop; empty when nothing is known for certain.
std::string cause_of(const EndEvidence& evidence);

// Why a rank crashed, from the frames of the thread that crashed, innermost first. Names the
// innermost function, its nearest caller with a known line if its own line is not known, and the
// usual cause. Empty if no signal ended the rank, or if there are no frames.
std::string cause_of_crash(const RankEnd& end, const std::vector<std::string>& frames);

// "out of memory" if `cause`, a result of cause_of(), begins with that; otherwise empty.
std::string short_reason(const std::string& cause);

}  // namespace paceline::launcher
