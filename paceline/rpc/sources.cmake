set(SOURCES
  message.cpp
  references.cpp
  session.cpp)
set(LIBRARIES fmt::fmt)
