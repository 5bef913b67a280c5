#pragma once

// Files on a disk: images, texts, tables. Needs no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#include <the-error-above>  // ends the compilation, because every later error would follow from it
#else

#include "paceline/files/images/image_pipeline_options.h"
#include "paceline/files/table_files/table_checkpoints.h"
#include "paceline/files/text/tokenizer.h"

#endif
