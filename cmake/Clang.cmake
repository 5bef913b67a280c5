# A toolchain file that selects the newest clang among the versions that can build this project. Debian 12 and 13 have different versions,
# which are part of the names of the programs.
find_program(PACELINE_CLANG NAMES clang++-19 clang++-18 clang++-17 clang++-16 REQUIRED)
set(CMAKE_CXX_COMPILER ${PACELINE_CLANG})
