set(SOURCES
  activation_checkpoint.cpp
  bucket_plan.cpp
  compression_hooks.cpp
  distributed_data_parallel.cpp
  launch_turns.cpp
  lockstep.cpp
  module_replicas.cpp
  pass_counter.cpp
  post_local_sgd.cpp
  reducer.cpp
  reducer_plan.cpp
  replica_check.cpp
  replica_threads.cpp
  sync_batch_norm.cpp)
set(LIBRARIES fmt::fmt)
