#pragma once

// How the processes of a job meet: from nothing but its environment or explicit options, a process
// learns its rank and gets a Store that all ranks share, plus the job's secret.
//
//   init_method "env://" (default)   who from detect_launch_environment(), where from the
//                                    launcher's variables
//               "tcp://HOST:PORT"    rank 0 hosts the store there, everyone connects
//               "file:///PATH"       a file that all ranks can write; removed when the last leaves
//
// A group of one needs no store host: it gets a memory store.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/store.h"

namespace paceline {

class HostedStore;

struct RendezvousOptions {
  std::string init_method = "env://";
  std::optional<int> rank;  // overrides what the environment says; both or neither
  std::optional<int> world_size;
  std::shared_ptr<Store> store;  // with rank and world_size: used as it is, init_method is not
  std::optional<Secret> secret;  // overrides PACELINE_SECRET_FD, PACELINE_SECRET_FILE
  std::chrono::milliseconds timeout = kDefaultStoreTimeout;
};

struct Rendezvous {
  LaunchEnvironment who;
  std::shared_ptr<Store> store;  // shared by all ranks; the engine prefixes its keys
  Secret secret;                 // the job's
  // The interface address by which other hosts reach this process; loopback when all ranks are on
  // one host.
  std::string address = "127.0.0.1";
  // The number of earlier rendezvous in this store; a part of the keys, so that they do not
  // collide.
  std::int64_t round = 0;
  // Keeps the store up where it is hosted by a rank. Null for other stores.
  std::shared_ptr<HostedStore> hosted;
};

// Who this process is: by the options, else by the environment. Errors as rendezvous().
LaunchEnvironment who_am_i(const RendezvousOptions& options = {},
                           const GetVariable& variable = process_environment());

// Blocks until every rank has arrived. While it waits it logs which ranks are missing (after 10 s,
// then every 30 s). Error(kTimeout) names the missing ranks; Error(kInvalid) for a contradictory
// environment, a rank outside the world, a rank that two processes claim (both are told, with host
// and pid of the other), or when this process is that rank already, of a meeting that it has not
// left.
//
// The store belongs to all its holders. When the last holder in rank 0's process lets a
// store go that this process hosts, it keeps it up until every other rank has done so, has formed
// all its groups in it, or is gone, at most 10 s.
Rendezvous rendezvous(const RendezvousOptions& options = {},
                      const GetVariable& variable = process_environment());

// Instead of rendezvous(), by a rank that cannot take part: the others get `reason` there as their
// Error(kInvalid). Where they meet at this rank it waits until they have arrived, at most 10 s.
// Throws nothing: when no rank can be told, none is.
void decline_rendezvous(const Error& reason, const RendezvousOptions& options = {},
                        const GetVariable& variable = process_environment());

}  // namespace paceline
