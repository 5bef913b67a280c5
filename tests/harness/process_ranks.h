#pragma once

// Runs a group's ranks as forked processes of the test, so that they can be killed and stopped. A
// watchdog kills ranks that hang. Requires: the test program has no other threads when it calls
// run_process_ranks().

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"

#include "tests/harness/ranks_options.h"

namespace paceline::harness {

struct ProcessResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string report;  // returned by the body, or the text of the Error that it threw
  ErrorCode code{};    // the code of that Error
  ErrorContext context;
  bool threw = false;
  // The time at which the body had returned or thrown and the group was destroyed, on the clock
  // that all processes share.
  std::chrono::steady_clock::time_point ended{};
};

// `body` returns the report of its rank. If it throws an Error, the report is the error's text and
// the exit code is 1. After a failed expectation the exit code is 2.
using ProcessBody = std::function<std::string(ProcessGroup& group)>;
// Runs in the parent once all children have been started. It may kill or stop them, and must let a
// stopped child continue.
using Intervention = std::function<void(const std::vector<pid_t>& pids)>;

std::vector<ProcessResult> run_process_ranks(int world_size, const ProcessBody& body,
                                             const RanksOptions& options = {},
                                             const Intervention& intervention = {});

// For an intervention: waits until this child has ended, but does not reap it.
void wait_for_the_end_of(pid_t pid, Deadline deadline);

}  // namespace paceline::harness
