#pragma once

// The first line of a distributed program. Alone, under `paceline run`, mpirun, srun, torchrun or
// with hand-set variables, the same call finds out which rank this process is and connects it with
// the others.

#include <memory>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct InitOptions {
  RendezvousOptions rendezvous;
  GroupOptions group;
};

// Collective over the job. Also sets the rank of the log lines. PACELINE_TRANSPORT (auto, shm, tcp,
// loopback, ucx) chooses the transport when the options leave it at kAuto, PACELINE_BACKEND (what
// parse_backend_choice() takes) the backend when they leave it empty; PACELINE_ENCRYPT=1 encrypts
// what goes over TCP when they do not ask for it, and PACELINE_TCP_STREAMS (1 to 16) says over how
// many connections for each pair when they say 1; PACELINE_BY_PACKAGE=1 sets
// PlanningOptions::by_package; PACELINE_TIMEOUT (seconds, from 0.001 to a billion) is
// GroupOptions::timeout when they leave it empty (an empty variable is none); PACELINE_FLIGHT_DIR
// says where operations are recorded (flight/group_flight.h), PACELINE_TIMELINE_DIR, set for all
// ranks or for none, where spans are (engine/telemetry/timeline.h). What is wrong with these or the
// options is told to the other ranks, where they meet: their Error(kInvalid) too. Errors: those of
// rendezvous(), connect_mesh() and parse_backend_choice(); kUnsupported for a backend that this
// build lacks, kInvalid when the ranks chose different ones.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace paceline
