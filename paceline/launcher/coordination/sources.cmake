set(SOURCES
  coordinator.cpp
  coordinator_admission.cpp
  job_control.cpp
  restart_policy.cpp)
set(LIBRARIES fmt::fmt)
