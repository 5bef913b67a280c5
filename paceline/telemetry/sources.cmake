set(SOURCES
  metrics_log.cpp
  step_log.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
