set(SOURCES
  batch_mixing.cpp
  batch_plan.cpp
  batch_source.cpp
  cifar_file.cpp
  data_loader.cpp
  dataset.cpp
  image_samples.cpp
  distributed_sampler.cpp
  grouped_order.cpp
  gzip_file.cpp
  idx_file.cpp
  image_dataset.cpp
  image_folder.cpp
  line_files.cpp
  sample_dataset.cpp
  streamed_dataset.cpp
  token_dataset.cpp
  torch_sampler.cpp
  transform.cpp)
set(LIBRARIES fmt::fmt ZLIB::ZLIB)
set_source_files_properties(paceline/training/data/transform.cpp PROPERTIES COMPILE_OPTIONS "-O3" SKIP_PRECOMPILE_HEADERS ON)
