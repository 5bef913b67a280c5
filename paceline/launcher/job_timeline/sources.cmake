set(SOURCES
  job_timeline.cpp
  timeline_trace.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
