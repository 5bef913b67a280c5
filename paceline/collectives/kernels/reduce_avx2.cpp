#define PACELINE_KERNEL avx2
#include "paceline/collectives/kernels/reduce_kernel.h"
