set(SOURCES
  agent.cpp
  chaos_plan.cpp
  generation.cpp
  job_flights.cpp
  job_membership.cpp
  job_services.cpp
  job_watch.cpp
  rank_process.cpp
  rank_seeds.cpp
  chaos_injector.cpp
  run_tally.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
