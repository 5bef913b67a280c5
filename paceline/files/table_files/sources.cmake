set(SOURCES table_files.cpp)
set(LIBRARIES fmt::fmt)
