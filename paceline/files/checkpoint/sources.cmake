set(SOURCES
  box.cpp
  box_file.cpp
  box_plan.cpp
  checkpoint_copy.cpp
  checkpoint_directory.cpp
  checkpoint_team.cpp
  checkpoint_writer.cpp
  file_system.cpp
  manifest.cpp
  memory_checkpoint.cpp
  memory_team.cpp
  safetensors.cpp
  writer_claim.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::XXHASH)
