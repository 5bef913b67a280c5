set(SOURCES
  simulator.cpp)
set(LIBRARIES fmt::fmt)
