#define PACELINE_KERNEL portable
#include "paceline/collectives/kernels/lanes_portable.h"
#include "paceline/collectives/kernels/reduce_kernel.h"
