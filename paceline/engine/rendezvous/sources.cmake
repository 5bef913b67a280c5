set(SOURCES
  arrival.cpp
  fork_server.cpp
  hosted_store.cpp
  launch_environment.cpp
  meeting_point.cpp
  rendezvous.cpp)
set(LIBRARIES fmt::fmt)
