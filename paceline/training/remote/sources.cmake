set(SOURCES
  distributed_optimizer.cpp
  optimizers.cpp
  pass.cpp
  remote_backward.cpp
  remote_module.cpp
  served_module.cpp
  served_optimizer.cpp
  tensor_field.cpp
  weights_lock.cpp)
set(LIBRARIES fmt::fmt)
