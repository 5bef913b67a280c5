set(SOURCES
  one_copy.cpp
  write_fault.cpp)
set(LIBRARIES fmt::fmt)
