set(SOURCES
  file_store.cpp
  file_store_log.cpp
  key_values.cpp
  memory_store.cpp
  prefix_store.cpp
  store.cpp
  store_connection.cpp
  store_errors.cpp
  store_protocol.cpp
  store_server_loop.cpp
  store_service.cpp
  tcp_store.cpp
  tcp_store_server.cpp)
set(LIBRARIES fmt::fmt)
