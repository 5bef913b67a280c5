# Compiler settings of every target: C++20, position independent code, warnings, sanitizers, and ccache if it is installed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache caches precompiled headers only with these settings (ccache's manual, "Precompiled headers"). Paths inside the tree are
  # hashed relative to it, so every clone, and every build of one, shares its objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()

# Without this flag clang's precompiled headers differ in each build, and objects that use them are never found in the cache.
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
endif()

# Defined for every target, so that all targets can share a precompiled header.
add_compile_definitions(FMT_SHARED)

add_library(paceline_compiler INTERFACE)
target_compile_features(paceline_compiler INTERFACE cxx_std_20)
# Two warnings are disabled because GCC 12 gives them wrongly for std::string (GCC bug 105329 and similar ones).
target_compile_options(paceline_compiler INTERFACE -Wall -Wextra -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-stringop-overflow>)
if(PACELINE_WERROR)
  target_compile_options(paceline_compiler INTERFACE -Werror)
endif()
if(PACELINE_SANITIZE)
  add_compile_options(-fsanitize=${PACELINE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PACELINE_SANITIZE})
endif()
