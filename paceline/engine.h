#pragma once

// Public headers for communication: groups and their collectives, stores, calls between workers,
// shared tables, logs of steps. Like files.h, launcher.h and planning.h, they need no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // no such file: ends the compilation before consequential errors
#else

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/group/agreed_stop.h"
#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rpc/call_error.h"
#include "paceline/engine/rpc/call_target.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"
#include "paceline/engine/telemetry/metrics_log.h"
#include "paceline/engine/telemetry/phase_times.h"
#include "paceline/engine/telemetry/step_log.h"

#endif
