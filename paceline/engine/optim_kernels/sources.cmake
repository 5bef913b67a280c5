set(SOURCES
  block_kernels.cpp
  kernels.cpp)
# The precompiled headers have other options.
set_source_files_properties(paceline/engine/optim_kernels/kernels.cpp paceline/engine/optim_kernels/block_kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
