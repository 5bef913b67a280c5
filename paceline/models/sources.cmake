set(SOURCES
  attention.cpp
  bert.cpp
  cnn.cpp
  conv_norm.cpp
  division.cpp
  efficient_net.cpp
  generate.cpp
  gpt.cpp
  gpt_stage.cpp
  hugging_face.cpp
  layers.cpp
  mnist_net.cpp
  mobile_block.cpp
  residual_block.cpp
  resnet.cpp
  transformer_block.cpp)
set(LIBRARIES fmt::fmt)
