#define PACELINE_KERNEL avx512
#include "paceline/engine/collectives/kernels/lanes_avx512.h"
#include "paceline/engine/collectives/kernels/reduce_kernel.h"
