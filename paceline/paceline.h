#pragma once

// Everything: distributed training for LibTorch programs.

#include "paceline/data/data_loader.h"
#include "paceline/data/distributed_sampler.h"
#include "paceline/data/image_dataset.h"
#include "paceline/data/image_samples.h"
#include "paceline/engine.h"
#include "paceline/models/cnn.h"
#include "paceline/models/mnist_net.h"
#include "paceline/optim/adam.h"
#include "paceline/optim/sgd.h"
#include "paceline/parallel/distributed_data_parallel.h"
#include "paceline/telemetry/metrics_log.h"
#include "paceline/telemetry/tensorboard_log.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor/symmetric_tensors.h"
#include "paceline/train/checkpointer.h"
#include "paceline/train/evaluate.h"
#include "paceline/train/loop.h"
#include "paceline/train/progress.h"
#include "paceline/train/run_report.h"
#include "paceline/train/runtime.h"
