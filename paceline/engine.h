#pragma once

// The half of Paceline that needs no LibTorch: groups of ranks and their collectives, rendezvous,
// launching, checkpoints, calls between workers.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#else

#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/checkpoint_writer.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/launcher/spawn/spawn.h"
#include "paceline/planning/schedules/named_plans.h"
#include "paceline/planning/schedules/picture.h"
#include "paceline/planning/schedules/plan.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/planning/schedules/simulate.h"

#endif
