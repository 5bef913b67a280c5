set(SOURCES
  full_state_dict.cpp
  parallel_linear.cpp
  require_parts.cpp
  tensor_parallel_layers.cpp
  vocab_parallel.cpp)
set(LIBRARIES fmt::fmt)
