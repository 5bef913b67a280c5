#pragma once

// Starting ranks from inside a program. Needs no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#else

#include "paceline/launcher/spawn/spawn.h"

#endif
