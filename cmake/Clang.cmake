# A toolchain file: the newest clang of those that build this project. Debian 12 and 13 name them by their versions, and not the same ones.
find_program(PACELINE_CLANG NAMES clang++-19 clang++-18 clang++-17 clang++-16 REQUIRED)
set(CMAKE_CXX_COMPILER ${PACELINE_CLANG})
