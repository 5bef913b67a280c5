set(SOURCES
  file_store.cpp
  memory_store.cpp
  store.cpp
  store_protocol.cpp
  store_service.cpp
  tcp_store.cpp
  tcp_store_server.cpp)
set(LIBRARIES fmt::fmt)
