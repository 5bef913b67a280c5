set(SOURCES
  checkpoint_directory.cpp
  checkpoint_writer.cpp
  digest.cpp
  file_system.cpp
  folder.cpp
  manifest.cpp
  memory_checkpoint.cpp
  plain_file.cpp
  row_major.cpp
  run_mark.cpp
  safetensors.cpp
  shared_staging.cpp
  strict_json.cpp
  writer_claim.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::XXHASH)
