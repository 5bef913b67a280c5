set(SOURCES
  best_ways.cpp
  goodput.cpp
  gradient_overlap.cpp
  job_profile.cpp
  link_time.cpp
  machine.cpp
  memory_plan.cpp
  plan_text.cpp
  shared_cores.cpp
  step_forecast.cpp
  way.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
