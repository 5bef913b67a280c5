#pragma once

// Files on a disk: checkpoints, images, texts. Needs no LibTorch.

#if __cplusplus < 202002L
#error "Paceline needs C++20: compile with -std=c++20"
#else

#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/checkpoint_team.h"
#include "paceline/files/checkpoint/checkpoint_writer.h"
#include "paceline/files/checkpoint/memory_checkpoint.h"
#include "paceline/files/images/image_pipeline.h"
#include "paceline/files/table_files/table_files.h"
#include "paceline/files/text/tokenizer.h"

#endif
