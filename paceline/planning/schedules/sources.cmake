set(SOURCES
  list_schedule.cpp
  named_plans.cpp
  picture.cpp
  plan.cpp
  search.cpp
  simulate.cpp
  split_by_cost.cpp)
set(LIBRARIES fmt::fmt)
