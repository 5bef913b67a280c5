set(SOURCES
  cnn.cpp
  mnist_net.cpp)
set(LIBRARIES fmt::fmt)
