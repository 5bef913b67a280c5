set(SOURCES
  c10d.cpp
  collectives.cpp
  compute_settings.cpp
  prepared_call.cpp
  random.cpp
  shaped_messages.cpp
  tensor_marks.cpp
  tensor_memory.cpp
  tensor_view.cpp)
set(LIBRARIES fmt::fmt)

# LibTorch's Gloo backend needs Gloo's headers, which are not part of LibTorch.
find_path(PACELINE_C10D_GLOO_INCLUDE_DIR gloo/rendezvous/store.h)
if(PACELINE_C10D_GLOO_INCLUDE_DIR)
  set_source_files_properties(paceline/training/tensor/c10d.cpp PROPERTIES COMPILE_DEFINITIONS USE_C10D_GLOO)
else()
  set_source_files_properties(paceline/training/tensor/c10d.cpp PROPERTIES COMPILE_DEFINITIONS "PACELINE_NO_C10D=\"Gloo's headers were not found\"")
endif()
