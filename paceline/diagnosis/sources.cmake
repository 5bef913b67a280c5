set(SOURCES
  failure_cause.cpp
  failure_order.cpp
  failure_report.cpp
  flight_digest.cpp
  hang_inquiry.cpp
  hang_watch.cpp
  kernel_log.cpp
  memory_counters.cpp
  quiet_ranks.cpp
  rank_watch.cpp
  stack_reader.cpp
  stack_survey.cpp
  straggler_inquiry.cpp
  straggler_report.cpp
  straggler_watch.cpp
  thread_census.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
