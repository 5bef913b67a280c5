set(SOURCES
  device_memory.cpp
  streams.cpp)
set(LIBRARIES fmt::fmt)
