#pragma once

// Runs a group's ranks as forked processes of the test, so that they can be killed and stopped. A
// watchdog kills what hangs. Requires: the test program has no other threads when it calls this.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/collectives/group/process_group.h"

#include "tests/harness/network_hosts.h"

namespace paceline::harness {

struct ProcessRanksOptions {
  TransportKind transport = TransportKind::kAuto;
  std::string backend;  // as GroupOptions takes it
  std::chrono::milliseconds group_timeout{20'000};
  std::chrono::milliseconds watchdog{60'000};
  std::string flight_directory;  // where ranks record what they do, and leave it; empty: nowhere
  std::function<void(int rank)> before_connect;  // in each child, before its group is made
  // Rank r is on host r / ranks_per_host of these; null: all on this one.
  const NetworkHosts* hosts = nullptr;
  int ranks_per_host = 1;
  bool over_ipv6 = false;
  bool encrypt = false;
  int tcp_streams = 1;
  std::function<void(int rank, GroupOptions& options)> adjust;  // of each rank's group
};

struct ProcessResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string report;  // what the body passed to Report, or the text of the Error that it threw
  ErrorCode code{};    // of that Error
  bool threw = false;
  // When the body had returned or thrown and the group was gone: on the clock of all processes.
  std::chrono::steady_clock::time_point ended{};
};

// `body` returns what its rank reports. In a rank that throws an Error, the error's text is the
// report and the exit code is 1; after a failed expectation it is 2.
using ProcessBody = std::function<std::string(ProcessGroup& group)>;
// Runs in the parent once all children have been started: may kill or stop them. It must let a
// stopped child go on.
using Intervention = std::function<void(const std::vector<pid_t>& pids)>;

std::vector<ProcessResult> run_process_ranks(int world_size, const ProcessBody& body,
                                             const ProcessRanksOptions& options = {},
                                             const Intervention& intervention = {});

// For an intervention: waits until this child has ended, and leaves it to be collected.
void wait_for_the_end_of(pid_t pid, Deadline deadline);

}  // namespace paceline::harness
