set(SOURCES
  agent_link.cpp
  agent_messages.cpp
  clock_comparison.cpp
  job_socket.cpp
  remote_frames.cpp
  roles.cpp
  running_jobs.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
