#define PACELINE_ROW_KERNELS avx2
#include "paceline/files/images/resample_rows.h"
