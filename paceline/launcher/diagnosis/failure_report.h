#pragma once

// The report when a rank fails: which rank failed first and how, what that usually means, its
// last lines, where its log is. Pure functions.

#include <string>
#include <vector>

#include "paceline/launcher/process/rank_end.h"

namespace paceline::launcher {

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

// "0-3, 7"
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace paceline::launcher
