set(SOURCES
  activation_checkpoint.cpp
  communication_hook.cpp
  data_parallel.cpp
  distributed_data_parallel.cpp
  finite.cpp
  fully_shard.cpp
  gradient_buckets.cpp
  join.cpp
  lockstep.cpp
  low_rank.cpp
  pass_monitor.cpp
  reducer.cpp
  reducer_hook.cpp
  reducer_parts.cpp
  reducer_plan.cpp
  replica_guard.cpp
  step_passes.cpp
  sync_batch_norm.cpp)
set(LIBRARIES fmt::fmt PkgConfig::XXHASH)
# Loops that only -O3 vectorises.
set_source_files_properties(paceline/training/parallel/finite.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON
  SKIP_UNITY_BUILD_INCLUSION ON)
# The same bits on every processor: no fused multiply-add.
set_source_files_properties(paceline/training/parallel/low_rank.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
