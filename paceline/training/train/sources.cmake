set(SOURCES
  checkpoints/checkpointer.cpp
  checkpoints/checkpointer_begin.cpp
  checkpoints/checkpointer_restore.cpp
  checkpoints/read_checkpoint.cpp
  dry_run.cpp
  evaluate.cpp
  loop.cpp
  pipeline_gradients.cpp
  checkpoints/run_boxes.cpp
  run_report.cpp
  checkpoints/run_snapshot.cpp
  training_process.cpp
  training_run.cpp
  training_step.cpp
  checkpoints/weights_file.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
