set(SOURCES
  agent_link.cpp
  agent_messages.cpp
  clock_comparison.cpp
  job_socket.cpp
  job_terms.cpp
  remote_frames.cpp
  running_jobs.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
