set(SOURCES
  backward_pass.cpp
  gradient_order.cpp
  loans.cpp
  measure_layers.cpp
  measured.cpp
  pipeline.cpp
  stage_links.cpp
  stage_weights.cpp
  tied_weights.cpp)
set(LIBRARIES fmt::fmt)
