set(SOURCES
  acceptor.cpp
  cipher.cpp
  connect.cpp
  exchange.cpp
  loopback/memory.cpp
  mapping.cpp
  memory_exchange.cpp
  mesh.cpp
  message.cpp
  notice.cpp
  peer.cpp
  shm/memory.cpp)
set(LIBRARIES fmt::fmt PkgConfig::SODIUM)
