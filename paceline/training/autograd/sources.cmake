set(SOURCES
  branch_call.cpp
  differentiable_collectives.cpp
  parallel_branches.cpp)
set(LIBRARIES fmt::fmt)
