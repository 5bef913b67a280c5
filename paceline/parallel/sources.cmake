set(SOURCES
  bucket_plan.cpp
  distributed_data_parallel.cpp
  lockstep.cpp
  pass_counter.cpp
  reducer.cpp
  replica_check.cpp)
set(LIBRARIES fmt::fmt)
