set(SOURCES
  backward_pass.cpp
  measure_layers.cpp
  pipeline.cpp
  pipeline_division.cpp
  stage_links.cpp
  stage_weights.cpp)
set(LIBRARIES fmt::fmt)
