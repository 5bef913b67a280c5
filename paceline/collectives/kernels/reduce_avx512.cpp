#define PACELINE_KERNEL avx512
#include "paceline/collectives/kernels/lanes_avx512.h"
#include "paceline/collectives/kernels/reduce_kernel.h"
