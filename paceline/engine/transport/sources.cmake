set(SOURCES
  ${PACELINE_UCX_SOURCES}
  cipher.cpp
  control_messages.cpp
  exchange.cpp
  formation/acceptor.cpp
  formation/connect.cpp
  formation/dialer.cpp
  formation/peers.cpp
  host_memory.cpp
  loopback_wire.cpp
  mesh.cpp
  message_streams.cpp
  shared_memory.cpp
  socket_wire.cpp
  wire.cpp)
set(LIBRARIES fmt::fmt PkgConfig::SODIUM ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:paceline_ucx>)
