set(SOURCES
  activation_checkpoint.cpp
  communication_hook.cpp
  data_parallel.cpp
  distributed_data_parallel.cpp
  fully_shard.cpp
  reducer/gradient_buckets.cpp
  reducer/gradient_placement.cpp
  join.cpp
  low_communication.cpp
  outer_server.cpp
  outer_step.cpp
  reducer/lockstep.cpp
  reducer/pass_monitor.cpp
  reducer/reducer.cpp
  replica_guard.cpp
  reducer/step_passes.cpp
  sync_batch_norm.cpp
  reducer/vectorised_loops.cpp)
set(LIBRARIES fmt::fmt PkgConfig::XXHASH)
# Its loops need -O3 to be vectorised. Without fused multiply-add every processor gets the same
# bits.
set_source_files_properties(paceline/training/parallel/reducer/vectorised_loops.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
