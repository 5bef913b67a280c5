set(SOURCES
  messages.cpp
  regions.cpp)
set(LIBRARIES fmt::fmt)
