set(SOURCES
  batch_mixing.cpp
  batch_plan.cpp
  data_loader.cpp
  dataset.cpp
  image_samples.cpp
  distributed_sampler.cpp
  gzip_file.cpp
  idx_file.cpp
  image_dataset.cpp
  image_folder.cpp
  token_dataset.cpp
  torch_sampler.cpp
  transform.cpp)
set(LIBRARIES fmt::fmt ZLIB::ZLIB)
set_source_files_properties(paceline/data/transform.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON)
