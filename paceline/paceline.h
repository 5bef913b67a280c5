#pragma once

// Includes all of Paceline: distributed training for LibTorch programs.

#include "paceline/engine.h"
#include "paceline/files.h"
#include "paceline/launcher.h"
#include "paceline/planning.h"
#include "paceline/training.h"
