set(SOURCES
  cutting.cpp
  host_directory.cpp
  remote_rows.cpp
  row_batch.cpp
  row_checks.cpp
  row_server.cpp
  row_store.cpp
  row_update.cpp
  served_rows.cpp
  settings.cpp
  shared_rows.cpp
  slot_map.cpp
  staged_pushes.cpp
  table_access.cpp
  table_clock.cpp
  table_cut.cpp
  table_memory.cpp
  table_snapshot.cpp
  table_workers.cpp
  tables.cpp
  take_over.cpp
  transaction.cpp)
set(LIBRARIES fmt::fmt)

# GCC's thread sanitizer does not understand fences, and says so. What they order is atomic, so it is no race for the sanitizer.
if(PACELINE_SANITIZE MATCHES thread)
  set_source_files_properties(paceline/engine/tables/row_store.cpp paceline/engine/tables/transaction.cpp PROPERTIES COMPILE_OPTIONS -Wno-tsan)
endif()
