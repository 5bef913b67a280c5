set(SOURCES
  message.cpp
  session.cpp)
set(LIBRARIES fmt::fmt)
