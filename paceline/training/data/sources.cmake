set(SOURCES
  batch_mixing.cpp
  batch_source.cpp
  data_loader.cpp
  dataset.cpp
  dataset_files.cpp
  distributed_sampler.cpp
  image_dataset.cpp
  image_folder.cpp
  streamed_dataset.cpp
  token_dataset.cpp
  transform.cpp)
set(LIBRARIES fmt::fmt ZLIB::ZLIB)
set_source_files_properties(paceline/training/data/transform.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON)
