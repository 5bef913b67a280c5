set(SOURCES
  host_address.cpp
  host_link.cpp
  host_list.cpp
  host_return.cpp
  hosts_agent.cpp
  hosts_agent_end.cpp
  hosts_agent_return.cpp
  hosts_agent_start.cpp
  hosts_entry.cpp
  remote_end.cpp
  remote_input.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json)
