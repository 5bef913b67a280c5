set(SOURCES
  call_waits.cpp
  failure_report.cpp
  hang_inquiry.cpp
  hang_watch.cpp
  out_of_memory.cpp
  stack_reader.cpp
  straggler_watch.cpp
  thread_census.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
