#define PACELINE_ROW_KERNELS portable
#include "paceline/files/images/resample_rows.h"
