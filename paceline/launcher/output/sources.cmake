set(SOURCES
  console.cpp
  consoles.cpp
  folder_claim.cpp
  line_formatter.cpp
  log_directory.cpp
  old_log_folders.cpp
  rank_output.cpp
  rank_stdout.cpp)
set(LIBRARIES fmt::fmt)
