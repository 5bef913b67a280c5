set(SOURCES
  checkpointer.cpp
  checkpointer_begin.cpp
  checkpointer_restore.cpp
  dry_run.cpp
  evaluate.cpp
  loop.cpp
  pipeline_gradients.cpp
  run_boxes.cpp
  run_report.cpp
  run_snapshot.cpp
  training_process.cpp
  training_run.cpp
  training_step.cpp
  weights_file.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
