set(SOURCES
  console.cpp
  line_formatter.cpp
  log_directory.cpp
  rank_output.cpp)
set(LIBRARIES fmt::fmt)
