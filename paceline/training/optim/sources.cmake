set(SOURCES
  clip_gradients.cpp
  divided_parameters.cpp
  exponential_moving_average.cpp
  grad_scaler.cpp
  guarded_state.cpp
  lr_schedules.cpp
  optimizer.cpp
  parameter_home.cpp
  parameter_norms.cpp
  parameter_rows.cpp
  state_words.cpp
  rules/tensor_blocks.cpp
  rules/update_rules.cpp)
set(LIBRARIES fmt::fmt)
