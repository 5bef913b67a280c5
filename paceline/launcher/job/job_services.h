#pragma once

// The environment of one rank: what the launcher inherited, plus torchrun's variables (the same
// names, so that Python scripts run unchanged), thread counts and the job's store; without what
// MPI's launchers and torchrun say of the launcher itself. Pure.

#include <cstdint>
#include <memory>
#include <string>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"
#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/roles.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"

namespace paceline::launcher {

struct JobAddresses {
  std::string store;  // host:port of the job's store
  std::string master_addr;
  std::uint16_t master_port = 0;
  int secret_fd = -1;  // inherited; holds the job's secret as text
};

// The user's OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, OMP_WAIT_POLICY and GOMP_SPINCOUNT stand when
// they are set in `inherited`.
Environment worker_environment(const Environment& inherited, const LaunchOptions& options,
                               const NodePlace& place, int local_rank, const Placement& placement,
                               const JobAddresses& addresses);

// Says what the rank's stdout, a terminal of the launcher's making (launcher/output/rank_output.h),
// can do: a rank whose output alone is on the launcher's terminal may draw there. Any other is told
// that its terminal is a dumb one, so that logs and files get no colours; unless the user forces
// them.
void set_terminal(Environment& env, const LaunchOptions& options, const NodePlace& place,
                  int local_rank);

// What the launcher offers to its ranks besides starting them: the job's store (on the first node),
// a port for programs that bring a store of their own, and the secret that only this job knows.
//
// One node: the store listens on loopback, on a port the kernel picks; MASTER_PORT is another, kept
// free (launcher/process/rank_resources.h). Several nodes: the same at every node, on the address
// by which the others reach it, and all use those of the node with rank 0. Each generation has
// services of its own, so that what an older one left reaches no rank.
//
// The secret travels in a memfd that each rank inherits, never in an argument or a variable.

class JobServices {
 public:
  // For ranks on one node, with a secret of their own. Claims ports; starts no thread yet.
  // Error(kSystem) for a port that is taken.
  explicit JobServices(const LaunchOptions& options);
  // For a node of several, which the others reach at `host`.
  JobServices(const std::string& host, const Secret& secret);

  // A fresh descriptor with the secret for one rank (each has a read position of its own).
  Fd make_secret_fd() const;
  JobAddresses addresses() const { return addresses_; }
  Offer offer() const { return offer_; }
  // Uses another node's services and gives up the claims of this one.
  void use(const Offer& others);
  // Which ranks wait, and for which, in the first meeting of a generation. None where another
  // node's store is used, or this one does not answer within a second.
  Absence meeting(int generation, int world_size);
  // Starts the store's thread, unless another node's is used. Requires: all ranks have been forked.
  void start_store();

 private:
  void claim(const std::string& host, const std::string& master_addr, std::uint16_t master_port);
  void set_addresses();

  Secret secret_;
  Offer offer_;
  JobAddresses addresses_;
  ReservedPort reserved_;
  Fd store_listener_;  // until the store takes it
  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<TcpStore> onlooker_;  // of that store
};

// Memory in which a job's ranks may keep their state beyond their own deaths (MemoryCheckpoint): a
// file without a name, held by the agent, so that it lives exactly as long as the job on this host.
// It takes no memory until it is written to.

class JobMemory {
 public:
  JobMemory();

  // What tells a rank where it is, unless the user has named another place. Nothing when the
  // system gave none.
  void add_variables(Environment& environment) const;

 private:
  Fd file_;
};

}  // namespace paceline::launcher
