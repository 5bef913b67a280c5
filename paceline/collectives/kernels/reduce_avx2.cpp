#define PACELINE_KERNEL avx2
#include "paceline/collectives/kernels/lanes_avx2.h"
#include "paceline/collectives/kernels/reduce_kernel.h"
