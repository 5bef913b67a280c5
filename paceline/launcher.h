#pragma once

// Public header for starting ranks from inside a program. It needs no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // no such file: ends the compilation before consequential errors
#else

#include "paceline/launcher/spawn/spawn.h"

#endif
