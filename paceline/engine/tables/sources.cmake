set(SOURCES
  cutting.cpp
  host_directory.cpp
  row_batch.cpp
  row_store.cpp
  row_update.cpp
  settings.cpp
  shared_rows.cpp
  staged_pushes.cpp
  table_access.cpp
  table_clock.cpp
  table_memory.cpp
  table_workers.cpp
  tables.cpp
  take_over.cpp
  transaction.cpp)
set(LIBRARIES fmt::fmt)
