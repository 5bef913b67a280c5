#pragma once

// The schedules of a pipeline. Needs no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // ends the compilation, because every later error would follow from it
#else

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/pipeline_schedule.h"

#endif
