#define PACELINE_KERNEL portable
#include "paceline/engine/collectives/kernels/lanes_portable.h"
#include "paceline/engine/collectives/kernels/reduce_kernel.h"
