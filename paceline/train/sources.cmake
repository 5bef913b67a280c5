set(SOURCES
  checkpointer.cpp
  checkpointer_begin.cpp
  evaluate.cpp
  hook_snapshot.cpp
  loop.cpp
  progress.cpp
  run_ownership.cpp
  run_report.cpp
  run_snapshot.cpp
  runtime.cpp
  weights_file.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
