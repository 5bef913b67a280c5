set(SOURCES
  checkpoint_directory.cpp
  digest.cpp
  file_system.cpp
  manifest.cpp
  plain_file.cpp
  safetensors.cpp
  strict_json.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::XXHASH)
