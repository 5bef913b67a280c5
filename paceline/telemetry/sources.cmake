set(SOURCES
  metrics_log.cpp)
set(LIBRARIES nlohmann_json::nlohmann_json)
