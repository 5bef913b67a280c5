set(SOURCES
  agent.cpp
  generation.cpp
  job_flights.cpp
  job_membership.cpp
  job_watch.cpp
  chaos_injector.cpp
  run_tally.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
