#pragma once

// Starts ranks that carry out checks, with `paceline run`, and reads their records. A rank whose
// check has failed exits, because its group may no longer be usable. A check that exceeds its time
// limit is ended. In both cases only that check fails, and new ranks are started for the next
// checks. If new ranks begin no check, all their checks fail.
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
  std::string program;  // path of the ranks' program
  Setups setup = kHost;
  int num_ranks = 1;
  int num_threads = 1;  // of each rank
  bool is_quick = false;
  std::chrono::seconds limit{0};  // for every check; 0: the limits in the list of checks
  Deadline total;                 // when all ranks are ended; remaining checks fail
  std::vector<std::pair<std::string, std::string>> variables = {};  // set in the ranks
};

// Runs the checks in this order and returns their outcomes; also passes each outcome to `tell` as
// soon as it is known. `signals`: from apps::block_ending_signals(). Throws apps::Interrupted when
// a signal arrives, and Error(kSystem) if the ranks cannot be started.
std::vector<CheckOutcome> run_checks(const RunOptions& options,
                                     const std::vector<CheckSpec>& checks, const Fd& signals,
                                     const std::function<void(const CheckOutcome&)>& tell);

}  // namespace paceline::gpu_check
