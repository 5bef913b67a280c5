set(SOURCES
  distributed_optimizer.cpp
  remote_backward.cpp
  remote_module.cpp
  served_module.cpp
  tensor_field.cpp)
set(LIBRARIES fmt::fmt)
