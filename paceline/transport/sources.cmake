set(SOURCES
  acceptor.cpp
  cipher.cpp
  connect.cpp
  exchange.cpp
  loopback/memory.cpp
  loopback/pipe.cpp
  loopback/room.cpp
  loopback/wire.cpp
  mapping.cpp
  memory_exchange.cpp
  mesh.cpp
  message.cpp
  notice.cpp
  peer.cpp
  shm/memory.cpp
  socket_wire.cpp)
set(LIBRARIES fmt::fmt PkgConfig::SODIUM)
