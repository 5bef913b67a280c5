set(SOURCES
  copy.cpp
  cpu_list.cpp
  cpu_quota.cpp
  cpu_socket.cpp
  crc32c.cpp
  error.cpp
  futex.cpp
  handshake.cpp
  host.cpp
  log.cpp
  network_interface.cpp
  owner_process.cpp
  record_clock.cpp
  secret.cpp
  socket.cpp
  topology.cpp)
set(LIBRARIES fmt::fmt spdlog::spdlog PkgConfig::SODIUM PkgConfig::HWLOC)
