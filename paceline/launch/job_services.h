#pragma once

// What the launcher offers to its ranks besides starting them: the job's store (on the first node),
// a port for programs that bring a store of their own, and the secret that only this job knows.
//
// One node: the store listens on loopback, on a port the kernel picks; MASTER_PORT is another, kept
// free (reserved_port.h). Several nodes: the store listens on master-addr:master-port of node 0,
// the secret comes from PACELINE_SECRET_FILE, and MASTER_PORT is master-port + 1.
//
// The secret travels in a memfd that each rank inherits, never in an argument or a variable.

#include <memory>
#include <string>

#include "paceline/core/fd.h"
#include "paceline/launch/launch_options.h"
#include "paceline/launch/reserved_port.h"
#include "paceline/launch/worker_environment.h"
#include "paceline/store/tcp_store_server.h"

namespace paceline::launch {

class JobServices {
 public:
  // Claims ports and reads the secret; starts no thread yet. Error(kInvalid) for a secret file that
  // is missing or readable by others, Error(kSystem) for a port that is taken.
  explicit JobServices(const LaunchOptions& options);

  // A fresh descriptor with the secret for one rank (each has a read position of its own).
  Fd make_secret_fd() const;
  JobAddresses addresses() const { return addresses_; }
  // Starts the store's thread. Requires: all ranks have been forked.
  void start_store();

 private:
  void claim_one_node(const LaunchOptions& options);
  void claim_several_nodes(const LaunchOptions& options);

  std::string secret_text_;
  JobAddresses addresses_;
  ReservedPort reserved_;
  Fd store_listener_;  // until the store takes it
  std::unique_ptr<TcpStoreServer> store_;
};

// The text of the secret file of a job on several nodes, without its line end. Error(kInvalid).
std::string read_secret_file(const std::string& path);

}  // namespace paceline::launch
