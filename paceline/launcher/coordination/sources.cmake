set(SOURCES
  coordinator.cpp
  coordinator_admission.cpp
  coordinator_host.cpp
  coordinator_link.cpp
  coordinator_reunion.cpp
  restart_policy.cpp)
set(LIBRARIES fmt::fmt)
