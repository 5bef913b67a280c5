set(SOURCES
  activation_checkpoint.cpp
  communication_hook.cpp
  data_parallel.cpp
  distributed_data_parallel.cpp
  fully_shard.cpp
  join.cpp
  low_communication.cpp
  outer_server.cpp
  outer_step.cpp
  reducer/gradient_buckets.cpp
  reducer/gradient_placement.cpp
  reducer/lockstep.cpp
  reducer/pass_monitor.cpp
  reducer/reducer.cpp
  reducer/vectorised_loops.cpp
  replica_guard.cpp
  sync_batch_norm.cpp)
set(LIBRARIES fmt::fmt PkgConfig::XXHASH)
# Its loops need -O3 to be vectorised. Without fused multiply-add every processor gets the same
# bits.
set_source_files_properties(paceline/training/parallel/reducer/vectorised_loops.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
