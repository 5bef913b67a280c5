set(SOURCES
  spawn.cpp
  spawn_group.cpp)
set(LIBRARIES fmt::fmt)
