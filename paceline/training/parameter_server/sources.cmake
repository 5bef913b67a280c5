set(SOURCES
  dense_table.cpp
  remote_embedding.cpp
  row_prefetcher.cpp)
set(LIBRARIES fmt::fmt)
