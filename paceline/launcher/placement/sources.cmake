set(SOURCES
  core_division.cpp
  gpus.cpp
  machine_map.cpp
  machine_svg.cpp
  placement.cpp
  placement_warnings.cpp
  training_advice.cpp)
set(LIBRARIES fmt::fmt)
