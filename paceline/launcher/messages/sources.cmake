set(SOURCES
  agent_call.cpp
  agent_link.cpp
  agent_messages.cpp
  clock_comparison.cpp
  job_questions.cpp
  job_socket.cpp
  remote_frames.cpp
  remote_job.cpp
  roles.cpp
  running_jobs.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
