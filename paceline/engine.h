#pragma once

// The half of Paceline that needs no LibTorch: groups of ranks and their collectives, rendezvous,
// launching, checkpoints, calls between workers.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#else

#include "paceline/checkpoint/checkpoint_directory.h"
#include "paceline/checkpoint/checkpoint_team.h"
#include "paceline/checkpoint/checkpoint_writer.h"
#include "paceline/checkpoint/memory_checkpoint.h"
#include "paceline/collectives/group/agreed_stop.h"
#include "paceline/collectives/group/device_mesh.h"
#include "paceline/collectives/group/init.h"
#include "paceline/collectives/group/objects.h"
#include "paceline/collectives/group/process_group.h"
#include "paceline/core/error.h"
#include "paceline/core/exit_code.h"
#include "paceline/launch/spawn.h"
#include "paceline/rendezvous/rendezvous.h"
#include "paceline/rpc/workers.h"
#include "paceline/schedules/named_plans.h"
#include "paceline/schedules/picture.h"
#include "paceline/schedules/search.h"
#include "paceline/schedules/simulate.h"
#include "paceline/schedules/split_by_cost.h"
#include "paceline/schedules/trace.h"
#include "paceline/schedules/validate.h"

#endif
