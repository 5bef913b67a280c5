set(SOURCES
  descendants.cpp
  event_loop.cpp
  process.cpp
  process_end.cpp
  rank_resources.cpp
  supervisor.cpp)
set(LIBRARIES fmt::fmt)
