set(SOURCES
  clip_gradients.cpp
  divided_parameters.cpp
  exponential_moving_average.cpp
  grad_scaler.cpp
  guarded_state.cpp
  lr_scheduler.cpp
  optimizer.cpp
  optimizer_core.cpp
  parameter_home.cpp
  parameter_norms.cpp
  parameter_rows.cpp
  metadata.cpp
  rules/device_rules.cpp
  rules/tensor_blocks.cpp
  rules/update_rules.cpp
  step_on_device.cpp)
set(LIBRARIES fmt::fmt)
