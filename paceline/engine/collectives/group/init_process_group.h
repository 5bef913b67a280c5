#pragma once

// The first line of a distributed program: makes the group of all ranks.
//
//   auto group = paceline::init_process_group();

#include <memory>

#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/rendezvous/rendezvous_options.h"

namespace paceline {

// The options of init_process_group(). The same call works in a single process, under
// `paceline run`, mpirun, srun or torchrun, and with variables that a user has set: it finds out
// which rank this process is and connects it to the others.
struct InitOptions {
  RendezvousOptions rendezvous = {};
  GroupOptions group = {};
};

// Collective over the job. Also sets the rank of the log lines. Where the options keep a default,
// environment variables apply:
//
//   PACELINE_TRANSPORT: the transport (auto, shm, tcp, loopback, ucx), if the options have kAuto;
//   PACELINE_BACKEND: the backend (as parse_backend_choice() takes it), if the options name none;
//   PACELINE_ENCRYPT=1: encrypts the TCP connections, even if the options do not;
//   PACELINE_TCP_STREAMS: the number of connections of each pair (1 to 16), if the options have 1;
//   PACELINE_TIMEOUT: GroupOptions::timeout in seconds (0.001 to a billion), if the options have
//   none; an empty variable sets nothing;
//   PACELINE_FLIGHT_DIR: the directory for the records of operations (docs/diagnosis.md);
//   PACELINE_TIMELINE_DIR: the directory for spans (docs/diagnosis.md); set it for all
//   ranks or for none.
//
// An error in these variables or in the options is reported to the other ranks, which then throw
// Error(kInvalid) as well. Errors: those of rendezvous(), connect_mesh() and
// parse_backend_choice(); kUnsupported for a backend that this build lacks, kInvalid when the ranks
// chose different ones.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace paceline
