set(SOURCES
  device_memory.cpp
  device_snapshot.cpp
  host_copies.cpp
  stream_join.cpp
  streams.cpp)
set(LIBRARIES fmt::fmt)
