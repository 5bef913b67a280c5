set(SOURCES
  adam.cpp
  kernels.cpp
  optimizer.cpp
  sgd.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/optim/kernels.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
