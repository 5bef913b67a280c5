set(SOURCES
  adam.cpp
  block_kernels.cpp
  clip_gradients.cpp
  divided_gradient.cpp
  divided_parameters.cpp
  exponential_moving_average.cpp
  grad_scaler.cpp
  gradient_blocks.cpp
  kernels.cpp
  lamb.cpp
  lr_schedules.cpp
  model_parts.cpp
  one_cycle_lr.cpp
  optimizer.cpp
  optimizer_guard.cpp
  optimizer_shard.cpp
  optimizer_step.cpp
  reduce_lr_on_plateau.cpp
  schedule.cpp
  sgd.cpp
  unit_plan.cpp
  word_sums.cpp
  words.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/training/optim/kernels.cpp paceline/training/optim/block_kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
