#define PACELINE_KERNEL avx2
#include "paceline/engine/collectives/kernels/lanes_avx2.h"
#include "paceline/engine/collectives/kernels/reduce_kernel.h"
