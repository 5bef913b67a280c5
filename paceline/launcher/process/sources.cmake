set(SOURCES
  descendants.cpp
  descriptor_limit.cpp
  dying_process.cpp
  environment.cpp
  event_loop.cpp
  memory_binding.cpp
  orphans.cpp
  process.cpp
  program.cpp
  rank_end.cpp
  reserved_port.cpp
  signal_end.cpp
  stdin_relay.cpp
  supervisor.cpp)
set(LIBRARIES fmt::fmt)
