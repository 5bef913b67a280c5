set(SOURCES
  chaos_plan.cpp
  job_services.cpp
  rank_process.cpp
  rank_seeds.cpp)
set(LIBRARIES fmt::fmt)
