set(SOURCES
  collectives.cpp
  tensor_view.cpp)
set(LIBRARIES fmt::fmt)
