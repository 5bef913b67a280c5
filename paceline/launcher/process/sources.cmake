set(SOURCES
  descendants.cpp
  event_loop.cpp
  process.cpp
  program_file.cpp
  rank_resources.cpp
  supervisor.cpp)
set(LIBRARIES fmt::fmt)
