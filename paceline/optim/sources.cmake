set(SOURCES
  adam.cpp
  block_kernels.cpp
  clip_gradients.cpp
  flat_layout.cpp
  gradient_blocks.cpp
  kernels.cpp
  lamb.cpp
  optimizer.cpp
  optimizer_step.cpp
  sgd.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/optim/kernels.cpp paceline/optim/block_kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
