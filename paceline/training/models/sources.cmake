set(SOURCES
  bert.cpp
  cnn.cpp
  efficient_net.cpp
  gpt.cpp
  hugging_face.cpp
  layers.cpp
  linear.cpp
  resnet.cpp
  row_products.cpp
  transformer.cpp
  transformer_stage.cpp)
set(LIBRARIES fmt::fmt)
set_source_files_properties(paceline/training/models/row_products.cpp PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-trapping-math" SKIP_PRECOMPILE_HEADERS ON)
