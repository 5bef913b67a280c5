set(SOURCES
  activation_checkpoint.cpp
  bucket_plan.cpp
  build_once.cpp
  compression_hooks.cpp
  distributed_data_parallel.cpp
  finite.cpp
  fully_shard.cpp
  join.cpp
  kept_tensors.cpp
  launch_turns.cpp
  lockstep.cpp
  low_rank.cpp
  module_replicas.cpp
  pass_counter.cpp
  pass_report.cpp
  post_local_sgd.cpp
  reducer.cpp
  reducer_hook.cpp
  reducer_parts.cpp
  reducer_plan.cpp
  replica_check.cpp
  replica_guard.cpp
  replica_threads.cpp
  shard_buffers.cpp
  shard_sum.cpp
  sync_batch_norm.cpp
  uneven_inputs.cpp)
set(LIBRARIES fmt::fmt PkgConfig::XXHASH)
# Loops that only -O3 vectorises.
set_source_files_properties(paceline/training/parallel/finite.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON
  SKIP_UNITY_BUILD_INCLUSION ON)
# The same bits on every processor: no fused multiply-add.
set_source_files_properties(paceline/training/parallel/low_rank.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
