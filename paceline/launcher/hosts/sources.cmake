set(SOURCES
  host_link.cpp
  host_list.cpp
  hosts_agent.cpp
  hosts_agent_end.cpp
  remote_end.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
