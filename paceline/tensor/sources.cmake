set(SOURCES
  collectives.cpp
  symmetric_tensors.cpp
  tensor_view.cpp)
set(LIBRARIES fmt::fmt)
