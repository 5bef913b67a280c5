set(SOURCES
  rules/block_kernels.cpp
  clip_gradients.cpp
  divided_parameters.cpp
  exponential_moving_average.cpp
  grad_scaler.cpp
  guarded_state.cpp
  rules/kernels.cpp
  lr_scheduler.cpp
  optimizer.cpp
  optimizer_core.cpp
  parameter_home.cpp
  parameter_norms.cpp
  parameter_rows.cpp
  metadata.cpp
  rules/tensor_blocks.cpp
  rules/update_rules.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/training/optim/rules/kernels.cpp paceline/training/optim/rules/block_kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
