#pragma once

// How the processes of a job meet. Each process learns its rank from its environment or from
// explicit options, and gets a Store that all ranks share, and the job's secret.
//
//   init_method "env://" (default)   the rank from detect_launch_environment(), the meeting point
//                                    from the launcher's variables
//               "tcp://HOST:PORT"    rank 0 hosts the store there, all ranks connect to it
//               "file:///PATH"       a file that all ranks can write; the last rank removes it
//
// A group of one needs no host for its store; it gets a memory store.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/rendezvous/rendezvous_options.h"
#include "paceline/engine/store/store.h"

namespace paceline {

class HostedStore;

struct Rendezvous {
  LaunchEnvironment environment;
  std::shared_ptr<Store> store;  // shared by all ranks; the engine prefixes its keys
  Secret secret;                 // the job's secret
  // The address at which other hosts reach this process; loopback when all ranks are on one host.
  std::string address = "127.0.0.1";
  // The number of earlier rendezvous of this generation in this store. Keys contain this number, so
  // that the keys of different rendezvous do not collide.
  std::int64_t round = 0;
  // Keeps the store open if a rank hosts it. Null for other stores.
  std::shared_ptr<HostedStore> hosted;
};

// The rank and the launcher of this process, from the options or else from the environment. Throws
// the errors of rendezvous().
LaunchEnvironment own_launch_environment(const RendezvousOptions& options = {},
                                         const GetVariable& variable = process_environment());

// Blocks until every rank has arrived. While it waits it logs which ranks are missing (after 10 s,
// then every 30 s). After options.timeout it throws Error(kTimeout), which names the missing ranks.
// Throws Error(kInvalid) for a contradictory environment, for a rank outside the world, for a rank
// that two processes claim (every waiting rank gets the error, with the host and pid of both), and
// when this process already holds that rank in an earlier rendezvous that it has not left.
//
// All copies of the result share ownership of its store. If rank 0's process hosts the store, the
// destruction of the last copy in that process waits, at most 10 s, until every other rank has
// released the store, has formed all its groups in it, or has exited.
Rendezvous rendezvous(const RendezvousOptions& options = {},
                      const GetVariable& variable = process_environment());

// A rank that cannot take part calls this instead of rendezvous(). rendezvous() of the other ranks
// then throws Error(kInvalid), or kTimeout if `reason` has that code, with the text of `reason`. A
// rank that hosts the store waits until the others have arrived, at most 10 s. The function throws
// nothing: if the other ranks cannot be reached, they do not learn the reason.
void decline_rendezvous(const Error& reason, const RendezvousOptions& options = {},
                        const GetVariable& variable = process_environment());

}  // namespace paceline
