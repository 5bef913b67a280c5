set(SOURCES
  host/cutting.cpp
  host/row_store.cpp
  host/row_update.cpp
  host/settings.cpp
  host/shared_rows.cpp
  host/table_access.cpp
  host/table_clock.cpp
  host/table_memory.cpp
  host/table_workers.cpp
  row_batch.cpp
  servers/remote_rows.cpp
  servers/row_server.cpp
  servers/served_rows.cpp
  table_cut.cpp
  tables.cpp)
set(LIBRARIES fmt::fmt)

# GCC's thread sanitizer does not understand fences, and says so. What they order is atomic, so it is no race for the sanitizer.
if(PACELINE_SANITIZE MATCHES thread)
  set_source_files_properties(paceline/engine/tables/host/row_store.cpp PROPERTIES COMPILE_OPTIONS -Wno-tsan)
endif()
