set(SOURCES
  job_timeline.cpp
  timeline_clocks.cpp
  timeline_collection.cpp
  timeline_trace.cpp)
set(LIBRARIES fmt::fmt)
