#define PACELINE_ROW_KERNELS portable
#include "paceline/images/resample_rows.h"
