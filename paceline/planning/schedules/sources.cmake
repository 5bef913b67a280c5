set(SOURCES
  list_schedule.cpp
  named_schedules.cpp
  picture.cpp
  pipeline_schedule.cpp
  search.cpp
  simulate.cpp
  split_by_cost.cpp)
set(LIBRARIES fmt::fmt)
