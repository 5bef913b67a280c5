set(SOURCES
  attention.cpp
  bert.cpp
  cnn.cpp
  conv_norm.cpp
  division.cpp
  efficient_net.cpp
  generate.cpp
  gpt.cpp
  hugging_face.cpp
  layers.cpp
  linear.cpp
  mnist_net.cpp
  mobile_block.cpp
  one_dnn_product.cpp
  residual_block.cpp
  resnet.cpp
  row_products.cpp
  stage.cpp
  transformer_block.cpp
  transformer_blocks.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/training/models/row_products.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
