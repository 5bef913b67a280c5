set(SOURCES
  assign_branches.cpp
  branch_call.cpp
  messages.cpp
  parallel_branches.cpp
  regions.cpp
  share_branches.cpp)
set(LIBRARIES fmt::fmt)
