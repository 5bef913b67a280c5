set(SOURCES
  spawn.cpp)
set(LIBRARIES fmt::fmt)
