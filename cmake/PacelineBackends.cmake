# Which communication libraries the engine is linked to. Each is a leaf, paceline/engine/collectives/backends/NAME; where it is
# not built, backends/library_list.cpp gets the reason, which `paceline doctor` prints.
#
# PACELINE_WITH_<NAME>: AUTO builds it when it is found, ON makes its absence an error, OFF leaves it out.
#
# Sets PACELINE_BACKENDS (names of those built), PACELINE_BACKEND_SOURCES (relative to paceline/engine/collectives) and
# PACELINE_BACKEND_LIBRARIES (files and flags, so that the installed package needs no find module). A library's headers are for its
# leaf's sources alone.
set(PACELINE_WITH_GLOO AUTO CACHE STRING "Backend gloo: AUTO, ON or OFF")
set(PACELINE_WITH_MPI AUTO CACHE STRING "Backend mpi: AUTO, ON or OFF")
set(PACELINE_WITH_ONECCL AUTO CACHE STRING "Backend oneccl: AUTO, ON or OFF")
set(PACELINE_WITH_NCCL OFF CACHE STRING "Backend nccl: AUTO, ON or OFF; OFF because every program would load NCCL's 300 MB")
set(PACELINE_MPI "" CACHE STRING "Which MPI where Debian has several: openmpi or mpich; empty: what mpicxx is")
set(PACELINE_ONECCL "" CACHE PATH "A Python environment with oneccl-devel and impi-devel, or a folder laid out alike")

set(PACELINE_BACKENDS "")
set(PACELINE_BACKEND_SOURCES backends/blocking_calls.cpp backends/connect_backend.cpp backends/library.cpp backends/library_list.cpp)
set(PACELINE_BACKEND_LIBRARIES "")

# paceline_backend(NAME missing [SOURCES ...] [INCLUDES ...] [DEFINITIONS ...]): settles one backend. `missing` is why it cannot be built;
# empty when it can. SOURCES are those beside NAME_library.cpp; all of them get INCLUDES and DEFINITIONS.
function(paceline_backend name missing)
  cmake_parse_arguments(ARG "" "" "SOURCES;INCLUDES;DEFINITIONS" ${ARGN})
  list(REMOVE_ITEM ARG_INCLUDES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})  # named again, they would hide the compiler's own
  string(TOUPPER ${name} upper)
  set(with ${PACELINE_WITH_${upper}})
  set_property(CACHE PACELINE_WITH_${upper} PROPERTY STRINGS AUTO ON OFF)
  if(NOT with MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PACELINE_WITH_${upper} is AUTO, ON or OFF, not '${with}'")
  elseif(with STREQUAL AUTO AND PACELINE_SANITIZE MATCHES "thread")
    set(missing "the thread sanitizer takes what it does not see in libraries for races")
  elseif(with STREQUAL OFF)
    set(missing "PACELINE_WITH_${upper} is OFF")
  elseif(with STREQUAL ON AND missing)
    message(FATAL_ERROR "PACELINE_WITH_${upper} is ON, but ${missing}")
  endif()
  set(folder paceline/engine/collectives/backends/${name})
  if(missing)
    message(STATUS "Backend ${name}: not built: ${missing}")
    set_property(SOURCE paceline/engine/collectives/backends/library_list.cpp APPEND PROPERTY COMPILE_DEFINITIONS
      "PACELINE_NO_${upper}=\"${missing}\"")
  else()
    message(STATUS "Backend ${name}: built")
    list(APPEND PACELINE_BACKENDS ${name})
    foreach(source ${name}_library.cpp ${ARG_SOURCES})
      list(APPEND PACELINE_BACKEND_SOURCES backends/${name}/${source})
      foreach(include IN LISTS ARG_INCLUDES)
        set_property(SOURCE ${folder}/${source} APPEND PROPERTY COMPILE_OPTIONS "-isystem${include}")
      endforeach()
      set_property(SOURCE ${folder}/${source} APPEND PROPERTY COMPILE_DEFINITIONS ${ARG_DEFINITIONS})
    endforeach()
  endif()
  set(PACELINE_BACKENDS ${PACELINE_BACKENDS} PARENT_SCOPE)
  set(PACELINE_BACKEND_SOURCES ${PACELINE_BACKEND_SOURCES} PARENT_SCOPE)
endfunction()

# ---- gloo
set(missing "")
if(NOT PACELINE_WITH_GLOO STREQUAL OFF)
  find_path(GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
  find_library(GLOO_LIBRARY gloo)
  if(NOT GLOO_INCLUDE_DIR OR NOT GLOO_LIBRARY)
    set(missing "Gloo was not found")
  elseif(PACELINE_WITH_LIBTORCH AND PACELINE_LIBTORCH_WHEEL)
    # Both export namespace gloo, with different layouts: the loader would mix them.
    set(missing "the LibTorch of PyPI's wheel brings another Gloo, whose symbols would replace this one's")
  else()
    file(READ ${GLOO_INCLUDE_DIR}/gloo/rendezvous/context.h text)
    if(NOT text MATCHES "connectFullMesh\\([ \n]*Store&")
      set(missing "${GLOO_INCLUDE_DIR} has another Gloo than Debian 12's")
    endif()
  endif()
endif()
paceline_backend(gloo "${missing}" SOURCES gloo_context.cpp INCLUDES ${GLOO_INCLUDE_DIR})
if(gloo IN_LIST PACELINE_BACKENDS)
  list(APPEND PACELINE_BACKEND_LIBRARIES ${GLOO_LIBRARY})
endif()

# ---- mpi
set(missing "")
if(NOT PACELINE_WITH_MPI STREQUAL OFF)
  if(PACELINE_MPI)
    find_program(MPI_CXX_COMPILER mpicxx.${PACELINE_MPI})
    find_program(MPIEXEC_EXECUTABLE mpiexec.${PACELINE_MPI})
  endif()
  set(MPI_CXX_SKIP_MPICXX ON)  # the removed C++ binding, a library of its own
  find_package(MPI COMPONENTS CXX QUIET)
  if(NOT MPI_CXX_FOUND)
    set(missing "no MPI was found")
  endif()
endif()
paceline_backend(mpi "${missing}" SOURCES mpi_runtime.cpp INCLUDES ${MPI_CXX_INCLUDE_DIRS}
  DEFINITIONS ${MPI_CXX_COMPILE_DEFINITIONS})
if(mpi IN_LIST PACELINE_BACKENDS)
  set(mpi_libraries ${MPI_CXX_LIBRARIES})
  list(FILTER mpi_libraries EXCLUDE REGEX "mpi_?cxx")
  list(APPEND PACELINE_BACKEND_LIBRARIES ${mpi_libraries})
endif()

# ---- oneccl
set(missing "")
if(NOT PACELINE_WITH_ONECCL STREQUAL OFF)
  if(NOT PACELINE_ONECCL)
    set(missing "not found: set PACELINE_ONECCL=DIR")
  elseif(NOT EXISTS ${PACELINE_ONECCL}/include/oneapi/ccl.hpp OR NOT EXISTS ${PACELINE_ONECCL}/lib/libccl.so.1)
    set(missing "${PACELINE_ONECCL} has no include/oneapi/ccl.hpp and lib/libccl.so.1")
  endif()
endif()
paceline_backend(oneccl "${missing}" INCLUDES ${PACELINE_ONECCL}/include
  DEFINITIONS PACELINE_ONECCL_PROVIDERS="${PACELINE_ONECCL}/lib")
if(oneccl IN_LIST PACELINE_BACKENDS)
  # Its libraries find each other only by the old kind of path, which reaches beyond the program.
  list(APPEND PACELINE_BACKEND_LIBRARIES ${PACELINE_ONECCL}/lib/libccl.so.1
    -Wl,--disable-new-dtags,-rpath,${PACELINE_ONECCL}/lib,-rpath-link,${PACELINE_ONECCL}/lib)
endif()

# ---- nccl
set(missing "")
if(NOT PACELINE_WITH_NCCL STREQUAL OFF)
  find_package(CUDAToolkit QUIET)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CUDAToolkit_FOUND)
    set(missing "no CUDA toolkit was found")
  elseif(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
    set(missing "NCCL was not found beside the CUDA toolkit")
  endif()
endif()
paceline_backend(nccl "${missing}" INCLUDES ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
if(nccl IN_LIST PACELINE_BACKENDS)
  list(APPEND PACELINE_BACKEND_LIBRARIES ${NCCL_LIBRARY} ${CUDAToolkit_LIBRARY_DIR}/libcudart.so)
endif()
