#pragma once

// The launcher's services for ranks: their environment, the job's store, port and secret, and
// memory that outlives the ranks.

#include <cstdint>
#include <memory>
#include <string>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/job_terms.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_resources.h"
#include "paceline/launcher/ranks/launch_options.h"

namespace paceline::launcher {

struct JobAddresses {
  std::string store;  // host:port of the job's store
  std::string master_addr;
  std::uint16_t master_port = 0;
  int secret_fd = -1;  // a descriptor that the rank inherits; holds the job's secret as text
};

// The environment of one rank: the variables that the launcher inherited, plus torchrun's (with the
// same names, so that Python scripts run unchanged), thread counts and the job's store. If mpirun,
// torchrun or an outer `paceline run` started this launcher, leaves out the variables that they set
// for this launcher itself: its rank, or the outer job's files and socket. Keeps the user's own
// OMP_WAIT_POLICY and GOMP_SPINCOUNT and, unless --threads-per-rank is given, OMP_NUM_THREADS and
// OPENBLAS_NUM_THREADS. Pure, except that this function reads the current folder.
Environment worker_environment(const Environment& inherited, const LaunchOptions& options,
                               const NodePlace& place, int local_rank, const Placement& placement,
                               const JobAddresses& addresses);

// Unsets the variables with which an outer `paceline run` passes its own files and socket to this
// process, one of its ranks: a job inside a rank has files of its own.
void leave_outer_job();

// Sets the variables about the rank's stdout, a terminal that the launcher made
// (launcher/output/rank_output.h). A rank may use colours and move the cursor if its output is the
// only one on the launcher's terminal. For any other rank TERM says that the terminal is dumb, so
// that logs and files get no colours, unless the user forces them.
void set_terminal(Environment& env, const LaunchOptions& options, const NodePlace& place,
                  int local_rank);

// The secret of a job on several nodes, as the launcher of --hosts sent it, or as find_job_secret()
// reads it. Error(kInvalid) if there is none.
Secret require_job_secret(const LaunchOptions& options);

// The job's store, a port for programs that create a store of their own, and the secret that only
// this job knows.
//
// On one node the store listens on loopback, on a port that the kernel picks; MASTER_PORT is
// another port, which is kept free (launcher/process/rank_resources.h). If there are several nodes,
// each node has such services, at the address at which other nodes reach it, and all nodes use the
// services of the node with rank 0. Each generation has its own services, so that no data of an
// older generation reaches a rank.
//
// The secret is passed in an inherited memfd, never in argv or in an environment variable.
class JobServices {
 public:
  // For a job on one node; chooses the secret. Claims ports, but does not start a thread yet.
  // Error(kSystem) for a port that is in use.
  explicit JobServices(const LaunchOptions& options);
  // For one of several nodes; the other nodes reach this one at `host`.
  JobServices(const std::string& host, const Secret& secret);

  // Returns a new memfd that holds the secret, for one rank: ranks that shared a memfd would share
  // its read position.
  Fd make_secret_fd() const;
  JobAddresses addresses() const { return addresses_; }
  Offer offer() const { return offer_; }
  // Uses another node's services, and releases the ports that this node has claimed.
  void use(const Offer& others);
  // The ranks that wait and the ranks that are missing in a generation's first rendezvous. Empty if
  // another node's store is used, or if this node's store does not answer within a second.
  Absence meeting(int generation, int world_size);
  // Starts the store's thread unless another node's store is used. Requires: all ranks are forked.
  void start_store();

 private:
  void claim(const std::string& host, const std::string& master_addr, std::uint16_t master_port);
  void set_addresses();

  Secret secret_;
  Offer offer_;
  JobAddresses addresses_;
  ReservedPort reserved_;
  Fd store_listener_;  // until start_store() passes it to the store
  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<TcpStore> observer_;  // a client of store_, for meeting()
};

// Memory in which a job's ranks can keep state that survives the ranks (MemoryCheckpoint): a file
// without a name that the agent holds open, so it exists exactly as long as the job runs on this
// host. It uses no memory until ranks write to it.
class JobMemory {
 public:
  JobMemory();

  // Sets the variable that tells a rank where the memory is, unless the user has set the variable
  // or the system could not provide the memory.
  void add_variables(Environment& environment) const;

 private:
  Fd file_;
};

}  // namespace paceline::launcher
