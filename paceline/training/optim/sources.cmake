set(SOURCES
  block_kernels.cpp
  clip_gradients.cpp
  divided_parameters.cpp
  exponential_moving_average.cpp
  grad_scaler.cpp
  kernels.cpp
  lr_schedules.cpp
  optimizer.cpp
  optimizer_guard.cpp
  optimizer_shard.cpp
  optimizer_step.cpp
  state_words.cpp
  tensor_blocks.cpp
  update_rules.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/training/optim/kernels.cpp paceline/training/optim/block_kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
