set(SOURCES
  backward_pass.cpp
  gradient_order.cpp
  measured.cpp
  pipeline.cpp
  stage_links.cpp
  tied_weights.cpp)
set(LIBRARIES fmt::fmt)
