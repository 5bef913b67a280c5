set(SOURCES
  dense_weights.cpp
  layers.cpp
  part_dropout.cpp
  parallel_linear.cpp
  require_parts.cpp
  spread_layers.cpp
  vocab_parallel.cpp
  vocab_parallel_loss.cpp)
set(LIBRARIES fmt::fmt)
