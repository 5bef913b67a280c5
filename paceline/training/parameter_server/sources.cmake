set(SOURCES
  dense_table.cpp
  remote_embedding.cpp)
set(LIBRARIES fmt::fmt)
