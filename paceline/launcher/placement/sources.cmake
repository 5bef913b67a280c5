set(SOURCES
  advice.cpp
  core_division.cpp
  division.cpp
  machine_map.cpp
  machine_svg.cpp
  machine_text.cpp
  placement.cpp
  placement_warnings.cpp)
set(LIBRARIES fmt::fmt)
