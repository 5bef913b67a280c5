#pragma once

// Starts the ranks that carry out checks, with `paceline run`, and follows their records. A rank
// whose check fails ends, because its group may be of no more use; a check that exceeds its limit
// is ended. Both are failures of that check alone: new ranks are started for the checks after it.
//
// Thread safety: none.

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

#include "apps/gpu_check/check_list.h"
#include "apps/gpu_check/check_report.h"

namespace paceline::gpu_check {

struct RunOptions {
  std::string program;  // that of the ranks
  Setups setup = kHost;
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  bool is_quick = false;
  std::chrono::seconds limit{0};  // of every check; 0: as in the list of checks
  Deadline total;                 // checks that have not begun by then fail
  std::vector<std::pair<std::string, std::string>> variables = {};  // of the ranks
};

// Runs the checks in this order, and returns their outcomes; also passes each to `tell` when it is
// known. `signals`: from apps::block_ending_signals(). Throws apps::Interrupted, and Error(kSystem)
// if nothing can be started.
std::vector<CheckOutcome> run_checks(const RunOptions& options,
                                     const std::vector<CheckSpec>& checks, const Fd& signals,
                                     const std::function<void(const CheckOutcome&)>& tell);

}  // namespace paceline::gpu_check
