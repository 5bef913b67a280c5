#pragma once

// Public headers for the schedules of a pipeline. They need no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // no such file: ends the compilation before consequential errors
#else

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/pipeline_schedule.h"

#endif
