#define PACELINE_KERNEL avx512
#include "paceline/collectives/kernels/reduce_kernel.h"
