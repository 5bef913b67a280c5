set(SOURCES
  call_gauge.cpp
  call_gauge_file.cpp
  crash_reporter.cpp
  flight_file.cpp
  flight_recorder.cpp
  metrics_log.cpp
  record_file.cpp
  step_gauge.cpp
  step_log.cpp
  timeline.cpp
  timeline_file.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)

# GCC's thread sanitizer does not understand fences, and says so.
if(PACELINE_SANITIZE MATCHES thread)
  set_source_files_properties(paceline/engine/telemetry/call_gauge.cpp paceline/engine/telemetry/step_gauge.cpp paceline/engine/telemetry/timeline.cpp PROPERTIES COMPILE_OPTIONS -Wno-tsan)
endif()
