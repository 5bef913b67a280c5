set(SOURCES
  autocast.cpp
  c10d.cpp
  collectives.cpp
  flat_layout.cpp
  model_share.cpp
  objects.cpp
  parameter_names.cpp
  random.cpp
  stream_order.cpp
  symmetric_tensors.cpp
  tensor_allocator.cpp
  tensor_memory_meter.cpp
  tensor_view.cpp
  thread_count.cpp
  write_mark.cpp)
set(LIBRARIES fmt::fmt)

# The Gloo that LibTorch carries needs Gloo's headers, which LibTorch does not bring.
find_path(PACELINE_C10D_GLOO_INCLUDE_DIR gloo/rendezvous/store.h)
if(PACELINE_C10D_GLOO_INCLUDE_DIR)
  list(APPEND SOURCES c10d_gloo.cpp)
  set_source_files_properties(paceline/training/tensor/c10d_gloo.cpp PROPERTIES COMPILE_DEFINITIONS USE_C10D_GLOO)
else()
  list(APPEND SOURCES no_c10d_gloo.cpp)
  set_source_files_properties(paceline/training/tensor/no_c10d_gloo.cpp PROPERTIES COMPILE_DEFINITIONS "PACELINE_NO_C10D=\"Gloo's headers were not found\"")
endif()
