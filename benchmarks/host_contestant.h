#pragma once

// One contestant of `paceline bench` (benchmarks/contestants) with ranks on several hosts, which
// are network namespaces. The ranks talk to this program as they talk to `paceline bench`.
//
// Thread safety: none. Use it on the main thread, which enters each host to start ranks there.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/launcher/process/process.h"

#include "apps/bench/catalog.h"
#include "apps/bench/messages.h"
#include "tests/harness/network_hosts.h"

namespace paceline::benchmarks {

class HostContestant {
 public:
  // `number` identifies the contestant within a measurement, `title` names it for people.
  // `entry` and `hosts` must outlive this object.
  HostContestant(const bench::CatalogEntry& entry, bench::Located located,
                 const harness::NetworkHosts& hosts, int ranks_per_host, int number,
                 std::string title, launcher::Environment variables);
  // Ends its ranks.
  ~HostContestant();
  HostContestant(const HostContestant&) = delete;
  HostContestant& operator=(const HostContestant&) = delete;

  const std::string& title() const { return title_; }
  const std::string& version() const { return ready_.version; }
  // Returns when the library is ready on all ranks. Throws an Error with the ranks' output
  // otherwise.
  void start(Deadline deadline);
  // Seconds of each call on the slowest rank. Uses symmetric memory if the library has it.
  std::vector<double> take_turn(bench::Turn turn, Deadline deadline);

 private:
  int num_ranks() const { return hosts_.count() * ranks_per_host_; }
  void start_rank(int rank);
  void start_launcher();
  void write_remote_shell() const;
  void start_process(launcher::ProcessSpec spec);
  void accept_ranks(Deadline deadline);
  bool any_ended() const;
  [[noreturn]] void fail_with(const Error& error) const;

  const bench::CatalogEntry& entry_;
  const bench::Located located_;
  const harness::NetworkHosts& hosts_;
  const int ranks_per_host_, number_;
  const std::string title_;
  const launcher::Environment variables_;
  const std::string directory_;  // has the files below; removed with this object
  std::string socket_name_;
  std::vector<Fd> listeners_;  // one on every host, all with the same name
  Fd start_line_, output_, null_;
  std::vector<launcher::Process> processes_;
  std::vector<std::unique_ptr<bench::Conversation>> ranks_;
  bench::Ready ready_;
};

}  // namespace paceline::benchmarks
