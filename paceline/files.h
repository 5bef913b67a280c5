#pragma once

// Public headers for files: images, text, checkpoints of tables. They need no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // no such file: ends the compilation before consequential errors
#else

#include "paceline/files/images/image_pipeline_options.h"
#include "paceline/files/table_files/table_checkpoints.h"
#include "paceline/files/text/tokenizer.h"

#endif
