set(SOURCES
  algorithms/direct.cpp
  algorithms/hierarchy.cpp
  algorithms/in_shared_memory.cpp
  algorithms/recursive.cpp
  algorithms/ring.cpp
  algorithms/schedule.cpp
  algorithms/tree.cpp
  backends/backend_list.cpp
  backends/nccl/cuda_api.cpp
  backends/nccl/device_watch.cpp
  backends/nccl/nccl_api.cpp
  backends/nccl/nccl_communicator.cpp
  backends/nccl/nccl_library.cpp
  backends/nccl/nccl_messages.cpp
  backends/paceline/group_share.cpp
  backends/paceline/message_executor.cpp
  backends/paceline/message_queues.cpp
  backends/paceline/paceline_backend.cpp
  backends/paceline/point_to_point.cpp
  backends/paceline/shared_executor.cpp
  backends/paceline/slow_wait.cpp
  backends/paceline/symmetric_regions.cpp
  collective.cpp
  flight/explain.cpp
  flight/group_flight.cpp
  flight/positions.cpp
  flight/verdicts.cpp
  group/agreed_stop.cpp
  group/call_order.cpp
  group/device_mesh.cpp
  group/object_collectives.cpp
  group/engine_group.cpp
  group/engine_group_children.cpp
  group/engine_group_composed.cpp
  group/operations.cpp
  group/world_setup.cpp
  kernels/reduce.cpp
  kernels/reduce_portable.cpp
  memory/one_copy.cpp
  memory/symmetric_arena.cpp
  selection/algorithm.cpp
  selection/calibration.cpp
  selection/planner.cpp
  selection/simulator.cpp
  work.cpp
  ${PACELINE_BACKEND_SOURCES})
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::XXHASH ${PACELINE_BACKEND_LIBRARIES})

# All ranks must compute the same numbers, so multiply-adds are not fused, even on processors that
# can.
set_source_files_properties(paceline/engine/collectives/selection/planner.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

# One object per instruction set; kernels/reduce.cpp chooses at run time. Multiply-adds are not
# fused, so that all objects compute the same bits. GCC 12 warns about the undefined vectors that
# its own intrinsics for AVX-512 pass as unused operands. A loop that crosses a cache line takes up
# to a quarter longer, so loops begin at cache lines, wherever the linker puts the object.
set(reduce_flags -O3 -ffp-contract=off -falign-loops=64)
set_source_files_properties(paceline/engine/collectives/kernels/reduce_portable.cpp PROPERTIES COMPILE_OPTIONS "${reduce_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND SOURCES kernels/reduce_avx2.cpp kernels/reduce_avx512.cpp)
  set_source_files_properties(paceline/engine/collectives/kernels/reduce_avx2.cpp
    PROPERTIES COMPILE_OPTIONS "${reduce_flags};-mavx2;-mf16c")
  set_source_files_properties(paceline/engine/collectives/kernels/reduce_avx512.cpp
    PROPERTIES COMPILE_OPTIONS "${reduce_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
endif()
