set(SOURCES
  cnn.cpp
  layers.cpp
  mnist_net.cpp
  residual_block.cpp
  resnet.cpp)
set(LIBRARIES fmt::fmt)
