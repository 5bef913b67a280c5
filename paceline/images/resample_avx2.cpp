#define PACELINE_ROW_KERNELS avx2
#include "paceline/images/resample_rows.h"
