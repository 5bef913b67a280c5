set(SOURCES
  best_ways.cpp
  job_profile.cpp
  machine.cpp
  memory_plan.cpp
  step_forecast.cpp
  step_parts.cpp
  way.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
