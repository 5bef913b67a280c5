set(SOURCES
  action.cpp
  list_schedule.cpp
  named_plans.cpp
  picture.cpp
  plan.cpp
  plan_clock.cpp
  search.cpp
  simulate.cpp
  split_by_cost.cpp
  trace.cpp
  validate.cpp)
set(LIBRARIES fmt::fmt)
